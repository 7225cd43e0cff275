"""`omlx-cache move`: a cold directory goes to another disk."""

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from omlx_cache.settings.places import COLD_DIR_VARIABLE
from omlx_cache_daemon.errors import INTERRUPTED, OK
from omlx_cache_daemon.options import add_format_option
from omlx_cache_daemon.progress import Progress
from omlx_cache_daemon.render import print_json, quantity, text
from omlx_cache_daemon.source import existing

if TYPE_CHECKING:
    from omlx_cache_daemon.moving import Move

_SHOWN = 20


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "move",
        help="move the cold directory to another disk",
        description="Moves a cold directory that no store uses to a new place: each page is "
        "copied, verified and durable before the old directory goes. After an interruption the "
        "same command goes on. Says which setting to change.",
    )
    parser.add_argument(
        "new_dir", type=Path, metavar="NEW_DIR", help="a directory that is not there yet, or empty"
    )
    parser.add_argument(
        "--cold-dir",
        type=Path,
        metavar="OLD",
        help="the directory to move (default: the one that a store would use)",
    )
    parser.add_argument("--keep", action="store_true", help="leave the old one where it is")
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    # Reading the directory needs NumPy; a wrong command line does not.
    from omlx_cache_daemon.cold import configured_directory
    from omlx_cache_daemon.moving import carry_out, finish_earlier, planned

    source = args.cold_dir or configured_directory()
    move = planned(source, Path(os.path.abspath(args.new_dir.expanduser())), keep=args.keep)
    as_json = args.format == "json"
    if not finish_earlier(move):
        existing(source)
        try:
            with (
                Progress("moving", unit="bytes", shown=not as_json) as progress,
                contextlib.closing(carry_out(move)) as steps,
            ):
                total, done = next(steps), 0
                for nbytes in steps:
                    done += nbytes
                    progress.update(done, max(total, done))
        except KeyboardInterrupt:
            sys.stderr.write(
                f"omlx-cache: interrupted after {quantity('bytes', move.nbytes)}: the old "
                "directory is whole, and the same command goes on; to give it up delete "
                f"{text(str(move.staging))}\n"
            )
            return INTERRUPTED
    if as_json:
        print_json(_document(move, source))
    else:
        sys.stdout.write(_told(move, source))
    return OK


def _document(move: "Move", source: Path) -> dict[str, object]:
    return {
        "from": str(move.source),
        "to": str(move.target),
        "renamed": move.renamed,
        "files": move.files,
        "bytes": move.nbytes,
        "damaged_pages": move.damaged,
        "left_behind": [{"path": one.path, "why": one.left} for one in move.left],
        "old_is_there": move.source.exists(),
        "setting": f"{COLD_DIR_VARIABLE}={move.target}",
        "setting_was": _origin(source),
    }


def _told(move: "Move", source: Path) -> str:
    old, new = text(str(move.source)), text(str(move.target))
    how = f": {move.files:,} files, {quantity('bytes', move.nbytes)}" if move.files else ""
    verb = "copied" if move.keep else "moved"
    lines = [f"{verb} {old} to {new}{how}"]
    if move.damaged:
        lines.append(f"{move.damaged:,} damaged pages were not copied")
    if move.left_files:
        lines.append(f"{move.left_files:,} files were left behind, so {old} is still there:")
        lines += [f"  {text(one.path)}: {text(one.left)}" for one in move.left[:_SHOWN]]
        more = move.left_files - len(move.left[:_SHOWN])
        lines += [f"  and {more:,} more"] * (more > 0)
    lines.append(f"set {COLD_DIR_VARIABLE}={new} ({_origin(source)})")
    if source.is_symlink():
        lines.append(f"{text(str(source))} is a link to the old place")
    return "\n".join(lines) + "\n"


def _origin(source: Path) -> str:
    """Return where the old place comes from, for whoever has to change that."""
    from omlx_cache_daemon.cold import configured_directory

    given = os.environ.get(COLD_DIR_VARIABLE)
    if os.path.realpath(configured_directory()) != os.path.realpath(source):
        return "or whatever names the old one: serve's --cold-dir, cold_dir= in a program"
    if given is None:
        return "the old place is the default; a server takes --cold-dir as well"
    return f"the environment of this shell says {COLD_DIR_VARIABLE}={text(given)}"
