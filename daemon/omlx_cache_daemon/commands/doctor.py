"""`omlx-cache doctor`: what is not as it should be, what it means, and what helps."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from omlx_cache_daemon.errors import FAILURE, OK, UsageError
from omlx_cache_daemon.options import add_format_option, positive_seconds
from omlx_cache_daemon.render import print_json, quantity, text
from omlx_cache_daemon.source import existing

if TYPE_CHECKING:
    from omlx_cache_daemon.doctor.context import Context, Process
    from omlx_cache_daemon.doctor.finding import Finding


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="look for what is wrong, and mend what is safe to mend",
        description="Examines the cold directories, the running stores and this machine. Each "
        "finding says what it means and what helps. Exits with 1 when there is an error. With "
        "--remote the store that machines share is examined and measured.",
    )
    parser.add_argument(
        "--fix",
        action="store_true",
        help="do those remedies that are safe: no sound page is deleted",
    )
    parser.add_argument(
        "--cold-dir",
        type=Path,
        metavar="DIR",
        help="examine this directory (default: those of the running stores, else the one that a "
        "store would use)",
    )
    parser.add_argument(
        "--seconds",
        type=positive_seconds,
        default=2.0,
        metavar="SECONDS",
        help="how long to read pages of each directory, a sample of them (default: %(default)g); "
        "verify reads all",
    )
    parser.add_argument(
        "--remote",
        nargs="?",
        const="",
        metavar="URL",
        help="examine the store that machines share instead, the configured one or this: whether "
        "it is reached, lets us in and evicts; and measure it, with values of its own that are "
        "deleted again (--seconds for each rate). Its password comes from the settings",
    )
    add_format_option(parser)
    # A name that is misspelt is a finding here.
    parser.set_defaults(examines_variables=True)


def run(args: argparse.Namespace) -> int:
    if args.remote is not None:
        from omlx_cache_daemon.doctor.remote.command import run_remote

        if args.fix or args.cold_dir is not None:
            raise UsageError("--remote goes with neither --fix nor --cold-dir")
        return run_remote(args.remote, args.seconds, as_json=args.format == "json")
    # Not before the command line is known to be right: these take their time to import.
    from omlx_cache_daemon.doctor.context import Context, asked
    from omlx_cache_daemon.doctor.examination import DIRECTORY, MACHINE, examine, fix
    from omlx_cache_daemon.doctor.finding import in_order

    processes = asked()
    contexts = [
        Context(directory, processes, seconds=args.seconds)
        for directory in _directories(args.cold_dir, processes)
    ]
    found = examine(contexts[0], MACHINE)
    for context in contexts:
        found += examine(context, DIRECTORY)
    found = in_order(found)
    if args.fix:
        fix(found)
    errors = [one for one in found if one.severity == "error" and one.fixed is None]
    if args.format == "json":
        checks = [*MACHINE, *DIRECTORY]
        print_json({**_document(contexts, processes), "checks": checks, **_counts(found)})
    else:
        sys.stdout.write(_told(contexts, processes, found))
    return FAILURE if errors else OK


def _directories(given: Path | None, processes: "list[Process]") -> list[Path]:
    """Return the directory that was named, those of the running stores, or the configured one."""
    from omlx_cache_daemon.cold import configured_directory

    if given is not None:
        return [Path(os.path.abspath(existing(given)))]
    used = sorted({process.cold_dir for process in processes if process.cold_dir is not None})
    return [Path(path) for path in used] or [Path(os.path.abspath(configured_directory()))]


def _document(contexts: "list[Context]", processes: "list[Process]") -> dict[str, object]:
    return {
        "directories": [
            {
                "directory": str(context.directory),
                "exists": context.exists,
                "pages": context.census.pages,
                "bytes": context.census.nbytes,
                "sampled_pages": context.sampled,
            }
            for context in contexts
        ],
        "processes": [process.store.pid for process in processes],
    }


def _counts(found: "list[Finding]") -> dict[str, object]:
    left = [one.severity for one in found if one.fixed is None]
    return {
        "findings": [one.to_dict() for one in found],
        "errors": left.count("error"),
        "warnings": left.count("warning"),
        "fixed": len(found) - len(left),
    }


def _told(contexts: "list[Context]", processes: "list[Process]", found: "list[Finding]") -> str:
    lines = [_summary(context, len(processes)) for context in contexts]
    for one in found:
        lines += ["", f"{one.severity}: {text(one.found)}", f"  {text(one.meaning)}"]
        if one.fixed is not None:
            lines.append(f"  fixed: {text(one.fixed)}")
        else:
            lines += [f"  could not be fixed: {text(one.failed)}"] * (one.failed is not None)
            lines.append(f"  remedy: {text(one.remedy)}")
    fixable = sum(one.fix is not None and one.fixed is None for one in found)
    if fixable and not any(one.fixed or one.failed for one in found):
        lines += ["", f"omlx-cache doctor --fix mends {fixable} of these"]
    if not any(one.severity != "note" for one in found):
        lines += [""] * bool(found) + ["no trouble found"]
    return "\n".join(lines) + "\n"


def _summary(context: "Context", processes: int) -> str:
    where = text(str(context.directory))
    if not context.exists:
        is_there = os.path.lexists(context.directory)
        return f"{where}: cannot be read" if is_there else f"{where}: not there yet"
    census = context.census
    budget = "" if context.budget is None else f" of {quantity('bytes', context.budget.nbytes)}"
    return (
        f"{where}: {census.pages:,} pages, {quantity('bytes', census.nbytes)}{budget}; "
        f"{context.sampled:,} pages read; {processes} running"
    )
