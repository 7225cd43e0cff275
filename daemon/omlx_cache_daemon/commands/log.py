"""`omlx-cache log`: each request of the stores as it ends, or what happened to their pages."""

import argparse
import sys
import time
from collections.abc import Sequence
from operator import attrgetter
from queue import SimpleQueue

from omlx_cache_daemon.client import Client
from omlx_cache_daemon.errors import OK, NobodyThere
from omlx_cache_daemon.following import AT_A_TIME, Events, Follower, News, Requests, Row
from omlx_cache_daemon.options import add_format_option
from omlx_cache_daemon.render import Lines, print_json_line, text
from omlx_cache_daemon.stores import RunningStore, add_store_options, chosen, running
from omlx_cache_daemon.watching import Asking, until_interrupted
from omlx_cache_storage.stats import KINDS

_LOOK_SECONDS = 0.25
_STORES_SECONDS = 2.0
_SHOWN, _FOLLOWED_FROM = 50, 10


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "log",
        help="show each request, or what happened to pages",
        description="Prints a line for each of the latest requests of all stores that run, or of "
        "one: tokens from memory, disk and other machines, tokens computed, where its time went "
        "(TOTAL counts from its arrival), and why no more was restored. With --events: pages that "
        "were stored, evicted or deleted, requests that were restored, writes and reads that "
        "failed. Ctrl-C ends --follow.",
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
    what.add_argument("--events", action="store_true", help="what happened to pages")
    what.add_argument(
        "--kinds", type=_kinds, metavar="KIND,...", help=f"only these events: {', '.join(KINDS)}"
    )
    what.add_argument(
        "--kv",
        action="store_true",
        help="batches of BlockStored, BlockRemoved and AllBlocksCleared, one JSON document a "
        "line, for a prefix-aware router",
    )
    add_store_options(parser)
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    log = _Log(args, chosen(args))
    log.begin()
    if args.follow:
        until_interrupted(log.look, _LOOK_SECONDS)
    return OK


class _Log:
    """The logs of all stores as one. Mutable: `_stores`, those that are asked, `_looked`, when
    others were looked for, and `_followers`, by socket; threads fill `_news`."""

    def __init__(self, args: argparse.Namespace, stores: Sequence[RunningStore]) -> None:
        self._args, self._stores = args, stores
        self._looked = time.monotonic()
        self._news: SimpleQueue[tuple[int | None, News]] = SimpleQueue()
        self._asking = Asking(self._read, args.timeout)
        most = None if args.kv else _FOLLOWED_FROM if args.follow else _SHOWN
        self._most = most if args.limit is None else args.limit
        self._followers = {store.path: self._follower(store, self._most) for store in stores}
        self._lines = None
        if not args.kv and args.format != "json":
            self._lines = Lines((Events if args.events or args.kinds else Requests).columns)

    def begin(self) -> None:
        """Print the latest rows of all stores; raises NobodyThere where none answers."""
        replies = self._asking.ask(self._stores)
        for reply in replies:
            if reply.error is not None:
                path = text(reply.store.path)
                sys.stderr.write(f"omlx-cache: passed over: {path}: {reply.error}\n")
        self._show(self._most)
        if all(reply.error is not None for reply in replies):
            raise NobodyThere("no store answers")

    def look(self) -> None:
        """Print what has come anywhere, on stores that came later too; raises NobodyThere when the
        last store has gone."""
        is_due = time.monotonic() - self._looked >= _STORES_SECONDS
        if is_due and self._args.pid is None and self._args.socket is None:
            self._looked, self._stores = time.monotonic(), running()
            for store in self._stores:
                # All that one remembers that came meanwhile.
                self._followers.setdefault(store.path, self._follower(store, None))
        replies = self._asking.ask(self._stores, _LOOK_SECONDS)
        self._show(None)
        errors = [reply.error for reply in replies if reply.error is not None]
        if len(errors) == len(replies):
            raise NobodyThere(errors[0] if errors else "no store is running")

    def _follower(self, store: RunningStore, most: int | None) -> Follower:
        """Return what reads a store from its latest rows on; with None from all that it remembers.
        Of requests it remembers few."""
        args = self._args
        if not (args.events or args.kinds or args.kv):
            return Requests(store.pid, shows_begun=args.begin or not args.follow)
        first: dict[str, object] = {"kinds": args.kinds, "kv": args.kv or None}
        if most is None:
            return Events(store.pid, after=0, limit=AT_A_TIME, **first)
        return Events(store.pid, limit=max(1, most), **first)

    def _read(self, client: Client) -> None:
        follower = self._followers[client.path]
        news = follower.news(client.call)
        self._news.put((follower.pid, news))

    def _show(self, most: int | None) -> None:
        """Print the latest of what was read, `most` of it, and on standard error, in JSON in a line
        of its own too, what was missed."""
        rows: list[Row] = []
        while not self._news.empty():
            pid, news = self._news.get()
            rows += news.rows
            if news.missed:
                what = f"{news.missed:,} lines of process {pid} not seen"
                sys.stderr.write(f"omlx-cache: {what}: forgotten by then\n")
                if self._lines is None:
                    print_json_line({"pid": pid, "missed": news.missed})
        rows.sort(key=attrgetter("at"))
        for row in rows if most is None else rows[len(rows) - min(most, len(rows)) :]:
            if self._lines is None:
                print_json_line(row.document)
            else:
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
