"""The command line: a campaign, one round of it, a shared directory, power cuts, or the soak."""

import argparse
import contextlib
import logging
import platform
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .campaign import Campaign, Goals
from .record import record
from .tally import MEANINGS, Tally


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; 1 when anything went wrong."""
    args = _parser().parse_args(arguments)
    for name in ("omlx_cache", "omlx_cache_storage"):
        # What fails on purpose is logged thousands of times.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    run: Callable[[argparse.Namespace], int] = args.run
    return run(args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.set_defaults(run=_campaign)
    parser.add_argument("--seed", type=int, help="default: a new one, which is printed")
    parser.add_argument("--minutes", type=float, default=0.0, help="stop after so long (0: never)")
    parser.add_argument("--kills", type=int, default=0, metavar="K", help="goals: when all that")
    parser.add_argument("--flips", type=int, default=0, metavar="F", help="are given are reached,")
    parser.add_argument("--sessions", type=int, default=0, metavar="S", help="the campaign ends")
    parser.add_argument("--sessions-a-round", type=int, default=150, metavar="N")
    parser.add_argument("--grace", type=float, default=2.0, help="seconds a call may be late")
    parser.add_argument("--without", default="", metavar="FAULT,...", help="kinds to leave out")
    parser.add_argument("--only", default="", metavar="FAULT[:N]", help="one kind, or one round")
    _common(parser)
    commands = parser.add_subparsers()
    cuts = commands.add_parser("powercut", help="what a disk may hold after a power cut")
    cuts.add_argument("--seed", type=int, default=1)
    cuts.add_argument("--cuts", type=int, default=60, help="of each durability level")
    cuts.set_defaults(run=_powercut)
    _common(cuts)
    shared = commands.add_parser("shared", help="one directory, many processes that are killed")
    shared.add_argument("--seed", type=int, default=1)
    shared.add_argument("--minutes", type=float, default=5.0, help="of the tight directory")
    shared.add_argument("--kill-every", type=float, default=1.0, metavar="SECONDS")
    shared.add_argument("--only", default="", help="one round: tight, small disk or roomy")
    shared.set_defaults(run=_shared)
    _common(shared)
    service = commands.add_parser("service", help="three servers and omlx-cached, each disturbed")
    service.add_argument("--minutes", type=float, default=3.0)
    service.set_defaults(run=_service)
    _common(service)
    soak = commands.add_parser("soak", help="replay request traces for hours, paced")
    soak.add_argument("traces", nargs="*", type=Path, help="default: OMLX_CHAOS_TRACES")
    soak.add_argument("--hours", type=float, default=1.0)
    soak.add_argument("--seed", type=int, default=1)
    soak.add_argument("--share", type=float, default=0.25, help="of one core, at most")
    soak.add_argument("--every", type=float, default=60.0, help="seconds between samples")
    soak.add_argument("--csv", type=Path, help="where samples go")
    soak.set_defaults(run=_soak)
    _common(soak)
    return parser


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", type=Path, help="where to work (default: the temporary directory)")
    parser.add_argument("--json", type=Path, help="write everything there, also while it runs")
    parser.add_argument("--record", type=Path, metavar="FILE", help="put the table into a document")


def _campaign(args: argparse.Namespace) -> int:
    seed = random.SystemRandom().randrange(10**6) if args.seed is None else args.seed
    sys.stderr.write(f"seed {seed}\n")
    tally = Tally()
    began = time.monotonic()

    def report() -> None:
        if args.json is not None:
            # While a fault takes all descriptors there is none for this; the next time there is.
            with contextlib.suppress(OSError):
                args.json.write_text(tally.to_json())

    campaign = Campaign(
        seed,
        tally,
        args.dir,
        sessions=args.sessions_a_round,
        grace=args.grace,
        without=frozenset(name for name in args.without.split(",") if name),
        report=report,
        only=args.only.partition(":")[0],
    )
    kind, _, number = args.only.partition(":")
    if number:
        campaign.one(kind, int(number))
        report()
    else:
        goals = Goals(args.minutes * 60, args.kills, args.flips, args.sessions)
        if not goals.seconds and not goals.counted:
            goals = Goals(180.0)
        campaign.run(goals)
    table = tally.table()
    sys.stdout.write(table)
    if args.record is not None:
        minutes = (time.monotonic() - began) / 60
        words = f"Seed {seed}, {minutes:.0f} minutes, {_machine()}.\n\n{table}"
        record(args.record, "campaign", words)
    for verdict, meaning in MEANINGS.items():
        if f'"{verdict}"' in tally.to_json():
            sys.stdout.write(f"{verdict}: {meaning}\n")
    return 1 if tally.failed else 0


def _shared(args: argparse.Namespace) -> int:
    from .shared.run import Length, run_all

    tally = Tally()
    length = Length(args.minutes * 60, args.kill_every)
    done = run_all(length, args.seed, tally, args.dir, args.only)
    text = f"{tally.counts()}\n{done}"
    sys.stdout.write(text)
    if args.json is not None:
        args.json.write_text(tally.to_json())
    if args.record is not None:
        record(args.record, "shared", f"Seed {args.seed}, {_machine()}.\n\n{text}")
    return 1 if tally.failed else 0


def _service(args: argparse.Namespace) -> int:
    from .service.run import run

    done = run(args.minutes * 60, args.dir)
    sys.stdout.write(done.report)
    sys.stdout.writelines(f"WRONG: {fault}\n" for fault in done.faults)
    if args.record is not None:
        record(args.record, "service", f"{_machine()}.\n\n{done.report}")
    return 1 if done.faults else 0


def _powercut(args: argparse.Namespace) -> int:
    from .power.measure import measure, table

    found = measure(args.seed, args.cuts, args.dir)
    text = table(found)
    sys.stdout.write(text)
    if args.record is not None:
        record(args.record, "powercut", f"Seed {args.seed}, {_machine()}.\n\n{text}")
    return 1 if any(level.broken for level in found) else 0


def _soak(args: argparse.Namespace) -> int:
    from .soak.run import Soak
    from .soak.traces import find_traces

    soak = Soak(find_traces(args.traces), args.seed, args.dir, share=args.share, every=args.every)
    text, flat = soak.run(args.hours * 3600, args.csv)
    sys.stdout.write(text)
    if args.record is not None:
        record(args.record, "soak", f"{_machine()}.\n\n{text}")
    return 0 if flat else 1


def _machine() -> str:
    return f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
