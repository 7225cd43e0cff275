"""`omlx-cache import`: the pages of an archive that another machine exported."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from omlx_cache_daemon.errors import FAILURE, INTERRUPTED, OK, CommandError, UsageError
from omlx_cache_daemon.options import add_format_option
from omlx_cache_daemon.progress import Progress
from omlx_cache_daemon.render import print_json, quantity, text
from omlx_cache_daemon.source import add_source_options, used_directory

if TYPE_CHECKING:
    from omlx_cache_daemon.archive.unpacking import Unpacked
    from omlx_cache_daemon.archiving import Directory, Looked

_NOTES = {
    "present": "were there already",
    "refused": "found no room among pages that were used later; omlx-cache quota makes some",
    "undecodable": "are of another version's format or packing",
    "damaged": "are damaged",
}


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "import",
        description="Checks every page of an archive, and publishes those that are not there yet, "
        "within the directory's budget. Running stores find them at once. What was interrupted is "
        "run again: it goes on where it was. A page says what the machine computed that wrote it: "
        "import only archives of people whose answers you would trust.",
    )
    parser.add_argument("file", metavar="FILE", help="the archive, or - for standard input")
    parser.add_argument(
        "--dry-run", action="store_true", help="check the archive, and say what would be imported"
    )
    add_source_options(parser, "into this directory, whoever uses it")
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    if args.file == "-" and sys.stdin.isatty():
        raise UsageError("an archive does not come from a terminal: name a file")
    directory = used_directory(args)
    # Reading the directory needs NumPy; a wrong command line does not.
    from omlx_cache_daemon.archive.manifest import ArchiveError
    from omlx_cache_daemon.archive.unpacking import Archive
    from omlx_cache_daemon.archiving import Directory, Looked, warnings

    as_json, trouble, code = args.format == "json", "", OK
    done: Unpacked | None = None
    target: Looked | Directory | None = None
    with _input(args.file) as stream:
        archive = Archive(stream)
        told = warnings(archive.manifest, directory)
        for warning in told:
            sys.stderr.write(f"omlx-cache: {text(warning)}\n")
        total = archive.manifest.pages
        try:
            with (
                Looked(directory) if args.dry_run else Directory(directory) as target,
                Progress("importing", total, unit="pages", shown=not as_json) as progress,
            ):
                for done in archive.unpack(target):
                    progress.update(done.read)
        except ArchiveError as error:
            trouble, code = f"{text(error)}: the rest is not imported", FAILURE
        except OSError as error:
            why = error.strerror or str(error)
            trouble, code = f"{why}: run it again to go on", FAILURE
        except KeyboardInterrupt:
            trouble, code = "interrupted: run it again to go on", INTERRUPTED
    if done is None or target is None:
        raise CommandError(trouble or "nothing was read")
    _tell(done, target, args, str(directory), told, trouble)
    lacking = done.pages["damaged"] + done.pages["refused"] + target.lost
    return FAILURE if code == OK and lacking else code


def _tell(
    done: "Unpacked",
    target: "Looked | Directory",
    args: argparse.Namespace,
    directory: str,
    told: list[str],
    trouble: str,
) -> None:
    if args.format == "json":
        counts = {f"{fate}_pages": count for fate, count in done.pages.items()}
        print_json(
            {
                "directory": directory,
                "dry_run": args.dry_run,
                "what": done.manifest.what,
                "written_by": done.manifest.tool,
                "namespaces": [digest.hex() for digest in done.manifest.namespaces],
                "announced_pages": done.manifest.pages,
                "read_pages": done.read,
                "read_bytes": done.nbytes,
                **counts,
                "evicted_pages": target.evicted,
                "lost_pages": target.lost,
                "damage": done.damage,
                "warnings": told,
                "error": trouble or None,
            }
        )
    else:
        verb = "would import" if args.dry_run else "imported"
        count, of = done.pages["imported"], done.manifest.pages
        read = quantity("bytes", done.nbytes)
        print(f"{verb} {count:,} of {of:,} pages ({read} read) into {text(directory)}")
        for fate, note in _NOTES.items():
            if done.pages[fate]:  # type: ignore[index]
                print(f"  {done.pages[fate]:,} {note}")  # type: ignore[index]
        if target.evicted:
            print(f"  {target.evicted:,} others were evicted for them, used longer ago")
        if target.lost:
            print(f"  {target.lost:,} of them were evicted again: the budget has room for less")
        for damage in done.damage:
            print(f"  {text(damage)}")
    if trouble:
        sys.stderr.write(f"omlx-cache: {trouble}\n")


@contextmanager
def _input(name: str) -> Iterator[IO[bytes]]:
    """Give what the archive is read from."""
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        file = open(name, "rb")  # noqa: SIM115
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror}") from error
    with file:
        yield file
