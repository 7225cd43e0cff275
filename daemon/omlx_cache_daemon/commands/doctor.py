"""`omlx-cache doctor`: the troubles found, their meaning, and the remedies."""

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from omlx_cache.settings.sizes import counted
from omlx_cache_daemon.argument_types import positive_number, size
from omlx_cache_daemon.errors import FAILURE, INTERRUPTED, OK, UsageError
from omlx_cache_daemon.places import existing
from omlx_cache_daemon.process import Progress
from omlx_cache_daemon.render import folded, print_answer, quantity, text

if TYPE_CHECKING:
    from omlx_cache_daemon.doctor.examination import AskedProcess, Context, Finding

_FILES = 50


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "doctor",
        description="Examines the cold directories, the running stores and this machine. Each "
        "finding says what it means and what helps. Exits with 1 when there is an error. With "
        "--remote it examines and measures the remote store instead.",
    )
    parser.add_argument(
        "--fix",
        action="store_true",
        help="apply the remedies that are safe; none deletes a sound page",
    )
    parser.add_argument(
        "--cold-dir",
        type=Path,
        metavar="DIR",
        help="examine this directory (default: those of the running stores; without one, the "
        "configured directory)",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="read every page of the directories, past the system's file cache, and verify its "
        "checksum; stores may run meanwhile",
    )
    parser.add_argument(
        "--rate",
        type=size,
        default=0,
        metavar="SIZE",
        help="with --all: read at most this much a second (50MB)",
    )
    parser.add_argument(
        "--seconds",
        type=positive_number,
        default=2.0,
        metavar="SECONDS",
        help="without --all: for how long to read a sample of the pages of each directory "
        "(default: %(default)g)",
    )
    parser.add_argument(
        "--remote",
        nargs="?",
        const="",
        metavar="URL",
        help="examine the configured remote store, or the one at URL: whether it answers, accepts "
        "the password and evicts. Then measure it with values that are deleted again (--seconds "
        "for each rate). The password comes from the settings",
    )
    # A name that is misspelt is a finding here.
    parser.set_defaults(examines_variables=True)


def run(args: argparse.Namespace) -> int:
    if args.remote is not None:
        from omlx_cache_daemon.doctor.remote import examined

        if args.fix or args.all or args.cold_dir is not None:
            raise UsageError("--remote goes with neither --fix, --all nor --cold-dir")
        measured, found = examined(args.remote, args.seconds)
        return _show(args, measured.to_dict(), measured.report(), found)
    if args.rate and not args.all:
        raise UsageError(
            "--rate goes with --all: a sample is read for --seconds; see omlx-cache doctor --help"
        )
    # Not before the command line is known to be right: these take their time to import.
    from omlx_cache_daemon.doctor.directory import DIRECTORY, PLACE
    from omlx_cache_daemon.doctor.examination import Context, asked, examine, in_order, name_of
    from omlx_cache_daemon.doctor.machine import MACHINE, versions
    from omlx_cache_daemon.doctor.pages import PAGES

    processes, inside = asked(), (*DIRECTORY, versions, *PAGES)
    contexts = [
        Context(directory, processes, seconds=args.seconds)
        for directory in _directories(args.cold_dir, processes)
    ]
    was_interrupted = args.all and not _read_all(contexts, args)
    found = examine(contexts[0], MACHINE)
    for context in contexts:
        lost = examine(context, PLACE[:1])
        found += lost or examine(context, (*PLACE[1:], *(inside if context.exists else ())))
    if args.fix:
        for finding in found:
            finding.mend()
        # A consequence quotes its cause.
        found = [
            one
            for one in found
            if one.fixed or not any(cause.fixed and cause.found in one.found for cause in found)
        ]
    document = {
        "directories": [
            {
                "directory": str(context.directory),
                "exists": context.exists,
                "pages": context.census.pages,
                "bytes": context.census.nbytes,
                "sampled_pages": context.read,
            }
            for context in contexts
        ],
        "processes": [process.store.pid for process in processes],
        "checks": [name_of(check) for check in (*MACHINE, *PLACE, *inside)],
    }
    code = _show(args, document, "".join(map(_summary, contexts)), in_order(found))
    return INTERRUPTED if was_interrupted else code


def _directories(given: Path | None, processes: "Iterable[AskedProcess]") -> list[Path]:
    from omlx_cache_daemon.offline_files import configured_directory, root_of

    if given is not None:
        place = Path(os.path.abspath(given))
        # A missing one is an error of the command line, unless a check knows why.
        return [place if root_of(place).unmounted() else existing(place)]
    used = {process.cold_dir for process in processes if process.cold_dir is not None}
    return [Path(path) for path in sorted(used)] or [Path(os.path.abspath(configured_directory()))]


def _read_all(contexts: "list[Context]", args: argparse.Namespace) -> bool:
    """Read every page; False when the person did not wait for the end."""
    from omlx_cache_daemon.doctor.pages import read_all

    contexts = [context for context in contexts if context.exists]
    total = sum(context.census.by_namespace.total() for context in contexts)
    try:
        with Progress("reading", total, unit="bytes", shown=args.format != "json") as progress:
            for context in contexts:
                for nbytes in read_all(context, args.rate):
                    progress.update(progress.done + nbytes)
    except KeyboardInterrupt:
        sys.stderr.write("omlx-cache: interrupted: the rest was not read\n")
        return False
    return True


def _show(
    args: argparse.Namespace,
    document: dict[str, object],
    shown: str,
    found: "list[Finding]",
) -> int:
    left = [one.severity for one in found if one.fixed is None]
    print_answer(
        args.format == "json",
        {
            **document,
            "findings": [one.to_dict() for one in found],
            "errors": left.count("error"),
            "warnings": left.count("warning"),
            "fixed": len(found) - len(left),
        },
        folded(shown + _told(found)),
    )
    return FAILURE if "error" in left else OK


def _told(found: "list[Finding]") -> str:
    lines = []
    for one in found:
        lines += ["", f"{one.severity}: {text(one.found)}", f"  {text(one.meaning)}"]
        if any(file not in one.found for file in one.files):
            lines += [f"  {text(file)}" for file in one.files[:_FILES]]
            lines += [f"  and {len(one.files) - _FILES:,} more"] * (len(one.files) > _FILES)
        if one.fixed is not None:
            lines.append(f"  fixed: {text(one.fixed)}")
        else:
            lines += [f"  could not be fixed: {text(one.failed)}"] * (one.failed is not None)
            lines.append(f"  remedy: {text(one.remedy)}")
    fixable = sum(one.fix is not None for one in found)
    if fixable and not any(one.fixed or one.failed for one in found):
        lines += ["", f"omlx-cache doctor --fix mends {fixable} of these"]
    if all(one.severity == "note" for one in found):
        notes = f", {counted(len(found), 'note')}" if found else ""
        lines += [""] * bool(found) + [f"no trouble found{notes}"]
    return "".join(f"{line}\n" for line in lines)


def _summary(context: "Context") -> str:
    where = text(str(context.directory))
    if not context.exists:
        return f"{where}: not there yet, or cannot be read\n"
    of = "" if context.budget is None else f" of {quantity('bytes', context.budget.nbytes)}"
    return (
        f"{where}: {counted(context.census.pages, 'page')}, "
        f"{quantity('bytes', context.census.nbytes)}{of} (index included); "
        f"{counted(context.read, 'page')} read; {len(context.users)} running\n"
    )
