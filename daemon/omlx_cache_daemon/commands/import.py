"""`omlx-cache import`: the pages of an archive that another machine exported."""

import argparse
import sys
from contextlib import nullcontext
from typing import Final, get_args

from omlx_cache.settings.sizes import counted
from omlx_cache_daemon.errors import FAILURE, INTERRUPTED, OK, CommandError, UsageError
from omlx_cache_daemon.places import add_source_options, used_directory
from omlx_cache_daemon.process import Progress
from omlx_cache_daemon.render import print_answer, quantity, text, warn

_NOTES: Final = {
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


def run(args: argparse.Namespace) -> int:
    if args.file == "-" and sys.stdin.isatty():
        raise UsageError("an archive does not come from a terminal: name a file")
    directory, as_json = used_directory(args), args.format == "json"
    # Only here: reading a directory brings NumPy, which a wrong command line does not wait for.
    from omlx_cache_daemon.archive import Archive, ArchiveError, Fate
    from omlx_cache_daemon.archiving import Directory, Looked, warnings

    trouble, code, done = "", OK, None
    with nullcontext(sys.stdin.buffer) if args.file == "-" else open(args.file, "rb") as stream:
        try:
            archive = Archive(stream)
        except ArchiveError as error:
            raise CommandError(f"{args.file}: {error}") from error
        told = warnings(archive.manifest, directory)
        sys.stderr.writelines(f"omlx-cache: {text(warning)}\n" for warning in told)
        total = archive.manifest.pages
        try:
            with (
                nullcontext(Looked(directory)) if args.dry_run else Directory(directory) as target,
                Progress("importing", total, unit="pages", shown=not as_json) as progress,
            ):
                for done in archive.unpack(target):
                    progress.update(done.pages.total())
        except ArchiveError as error:
            trouble, code = f"{text(error)}: the rest is not imported", FAILURE
        except OSError as error:
            trouble, code = f"{error.strerror or error}: run it again to go on", FAILURE
        except KeyboardInterrupt:
            trouble, code = "interrupted: run it again to go on", INTERRUPTED
    if done is None:
        raise CommandError(trouble or "nothing was read")
    document = {
        "directory": str(directory),
        "dry_run": args.dry_run,
        "what": archive.manifest.what,
        "written_by": archive.manifest.tool,
        "namespaces": list(archive.manifest.namespaces),
        "announced_pages": total,
        "read_pages": done.pages.total(),
        "read_bytes": done.nbytes,
        **{f"{fate}_pages": done.pages[fate] for fate in get_args(Fate)},
        "evicted_pages": target.evicted,
        "lost_pages": target.lost,
        "damage": done.damage,
        "warnings": told,
        "error": trouble or None,
    }
    pages = f"{done.pages['imported']:,} of {counted(total, 'page')}"
    shown = f"{pages} ({quantity('bytes', done.nbytes)} read) into {text(directory)}\n"
    counts = {_NOTES[fate]: count for fate, count in done.pages.items() if fate in _NOTES}
    counts |= {
        "others were evicted for them, used longer ago": target.evicted,
        "of them were evicted again: the budget has room for less": target.lost,
    }
    notes = [f"{count:,} {note}" for note, count in counts.items() if count]
    shown += "".join(f"  {note}\n" for note in (*notes, *map(text, done.damage)))
    print_answer(as_json, document, f"{'would import' if args.dry_run else 'imported'} {shown}")
    warn({trouble: trouble})
    lacking = done.pages["damaged"] + done.pages["refused"] + target.lost
    return FAILURE if code == OK and lacking else code
