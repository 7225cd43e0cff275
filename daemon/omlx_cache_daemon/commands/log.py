"""`omlx-cache log`: each request of the stores as it ends, or what happened to their pages."""

import argparse
import sys
import time
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from queue import SimpleQueue

from omlx_cache_daemon.argument_types import complete_by
from omlx_cache_daemon.client import Client
from omlx_cache_daemon.errors import OK
from omlx_cache_daemon.log_follower import AT_A_TIME, Events, Follower, Requests, Row
from omlx_cache_daemon.render import Lines, print_json
from omlx_cache_daemon.stores import (
    StoreQuestion,
    add_store_options,
    chosen,
    say_who_is_silent,
    until_interrupted,
)
from omlx_cache_storage.stats import KINDS

_LOOK_SECONDS = 0.25
_STORES_SECONDS = 2.0
_SHOWN, _FOLLOWED_FROM = 50, 10


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "log",
        description="Prints a line for each of the latest requests of all stores that run, or of "
        "one: tokens restored, from memory, disk and other machines, tokens computed, its time "
        "(FIRST, to the first token, and TOTAL count from its arrival), and why no more was "
        "restored. A narrow terminal gets fewer columns. With --events: pages that were stored, "
        "evicted or deleted, requests that were restored, writes and reads that failed. Ctrl-C "
        "ends --follow.",
    )
    parser.add_argument("--follow", action="store_true", help="go on, with each line as it comes")
    parser.add_argument(
        "--limit",
        type=_count,
        metavar="N",
        help=f"how many to begin with (default: {_SHOWN}, {_FOLLOWED_FROM} with --follow; with "
        "--kv all that are remembered)",
    )
    parser.add_argument("--begin", action="store_true", help="show requests as they begin, too")
    what = parser.add_mutually_exclusive_group()
    complete_by(
        lambda prefix, args: KINDS,
        what.add_argument(
            "--events",
            type=_kinds,
            nargs="?",
            const=KINDS,
            metavar="KIND,...",
            help=f"what happened to pages: all of it, or of {', '.join(KINDS)}",
        ),
    )
    what.add_argument(
        "--kv",
        action="store_true",
        help="batches of BlockStored, BlockRemoved and AllBlocksCleared, one JSON document a "
        "line, for a prefix-aware router",
    )
    add_store_options(parser)


def run(args: argparse.Namespace) -> int:
    log = _Log(args)
    log.begin()
    if args.follow:
        until_interrupted(log.look, _LOOK_SECONDS)
    return OK


class _Log:
    """The logs of all stores as one. Mutable: `_stores` (looked for again when `_due`), `_most`
    (how many lines of each are shown first, None for all), and `_followers`, by socket. Threads
    fill `_rows`."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args, self._stores, self._due = args, chosen(args), time.monotonic() + _STORES_SECONDS
        self._most = None if args.kv else _FOLLOWED_FROM if args.follow else _SHOWN
        if args.limit is not None:
            self._most = args.limit
        self._followers: dict[Path, Follower] = {}
        self._rows: SimpleQueue[Row] = SimpleQueue()
        self._question = StoreQuestion(self._read, args.timeout)
        is_json = args.kv or args.format == "json"
        kind = Events if args.events else Requests
        # Of one store the process says nothing, and of several the numbers are the same.
        spare = kind.spare if len(self._stores) > 1 else ("PID", *kind.spare)
        self._lines = None if is_json else Lines(kind.columns, spare)

    def begin(self) -> None:
        """Raises NobodyThere where no store answers."""
        replies = self._question.ask(self._stores)
        self._print(self._most)
        # Of a store that comes later, all that it remembers.
        self._most = None
        say_who_is_silent(replies)

    def look(self) -> None:
        """Raises NobodyThere when the last store has gone."""
        if time.monotonic() >= self._due:
            self._stores, self._due = chosen(self._args), time.monotonic() + _STORES_SECONDS
        self._question.ask(self._stores, _LOOK_SECONDS)
        self._print(None)

    def _read(self, client: Client) -> None:
        follower = self._followers.setdefault(client.path, self._follower())
        for row in follower.news(client.call, client.pid):
            self._rows.put(row)

    def _follower(self) -> Follower:
        args, most = self._args, self._most
        if args.kv or args.events:
            what = {"kv": True} if args.kv else {"kinds": list(args.events)}
            first = {"after": 0, "limit": AT_A_TIME} if most is None else {"limit": max(1, most)}
            return Events(**what, **first)
        return Requests(shows_begun=args.begin or not args.follow)

    def _print(self, most: int | None) -> None:
        """Print the latest of the rows, `most` of them; a note of missed ones goes to standard
        error, in JSON as a line of its own too."""
        rows = sorted((self._rows.get() for _ in range(self._rows.qsize())), key=attrgetter("at"))
        for row in rows if most is None else rows[len(rows) - min(most, len(rows)) :]:
            if not row.cells:
                what = "{missed:,} lines of process {pid} not seen".format(**row.document)
                sys.stderr.write(f"omlx-cache: {what}: forgotten by then\n")
            if self._lines is None:
                print_json(row.document, indent=None)
            elif row.cells:
                self._lines.print(row.cells)


def _kinds(text: str) -> Sequence[str]:
    kinds = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        raise argparse.ArgumentTypeError(
            f"{unknown[0] if unknown else text!r} is no kind of event: {', '.join(KINDS)}"
        )
    return kinds


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)
