"""`omlx-cache events`: what happened to pages lately, and what happens."""

import argparse
import sys
import time
from collections.abc import Sequence

from omlx_cache_daemon.errors import OK, NobodyThere
from omlx_cache_daemon.event_reading import EventReader, EventRows, ManyReaders, in_order
from omlx_cache_daemon.options import add_format_option
from omlx_cache_daemon.render import print_json_line, quantity, text
from omlx_cache_daemon.replies import Map
from omlx_cache_daemon.stores import RunningStore, add_store_options, chosen, running
from omlx_cache_daemon.watching import Lines, until_interrupted
from omlx_cache_storage.stats import KINDS

_LOOK_SECONDS = 0.25
_STORES_SECONDS = 2.0
_SHOWN, _FOLLOWED_FROM = 50, 10
_NAMESPACE_DIGITS, _KEY_DIGITS = 8, 12
_COLUMNS = (
    ("TIME", 12),
    ("PID", 7),
    ("EVENT", -8),
    ("TIER", -4),
    ("NAMESPACE", -9),
    ("KEY", -_KEY_DIGITS),
    ("GROUP", -8),
    ("POSITION", 8),
    ("TOKENS", 7),
    ("BYTES", 10),
    ("DETAIL", -1),
)


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "events",
        help="show what happened to pages: stored, restored, evicted, failed",
        description="Prints the latest events of all stores that run, or of one: pages that were "
        "stored, evicted or deleted, requests that were restored, writes and reads that failed. "
        "Ctrl-C ends --follow.",
    )
    parser.add_argument("--follow", action="store_true", help="go on, with each event as it comes")
    parser.add_argument(
        "--kinds", type=_kinds, metavar="KIND,...", help=f"only these: {', '.join(KINDS)}"
    )
    parser.add_argument(
        "--limit",
        type=_count,
        metavar="N",
        help=f"how many to begin with (default: {_SHOWN}, {_FOLLOWED_FROM} with --follow; with "
        "--kv all that are remembered)",
    )
    parser.add_argument(
        "--kv",
        action="store_true",
        help="batches of BlockStored, BlockRemoved and AllBlocksCleared, one JSON document a "
        "line, for a prefix-aware router",
    )
    add_store_options(parser)
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    stores = chosen(args)
    shown = _Shown(args)
    readers, read = ManyReaders(), EventRows([], {})
    for store in stores:
        read = read.and_(_begin(readers, store, args, _most(args)))
        if not readers.is_here(str(store.path)):
            sys.stderr.write(f"omlx-cache: passed over: {text(readers.trouble)}\n")
    if not readers.any:
        raise NobodyThere("no store answers")
    shown.show(read, _most(args))
    if args.follow:
        _follow(readers, shown, args)
    return OK


def _follow(readers: ManyReaders, shown: "_Shown", args: argparse.Namespace) -> None:
    all_of_them = args.pid is None and args.socket is None
    looked = time.monotonic()

    def look() -> None:
        nonlocal looked
        read = readers.news()
        if all_of_them and time.monotonic() - looked >= _STORES_SECONDS:
            looked = time.monotonic()
            for store in running():
                if not readers.is_here(str(store.path)):
                    # All that one remembers that came meanwhile.
                    read = read.and_(_begin(readers, store, args, None))
        shown.show(read)
        if not readers.any:
            raise NobodyThere(f"the store has gone: {readers.trouble}")

    until_interrupted(look, _LOOK_SECONDS)


def _begin(
    readers: ManyReaders, store: RunningStore, args: argparse.Namespace, latest: int | None
) -> EventRows:
    reader = EventReader(store.client(args.timeout), kinds=args.kinds, kv=args.kv)
    return readers.begin(str(store.path), reader, latest)


def _most(args: argparse.Namespace) -> int | None:
    """Return how many events to begin with, None for all."""
    if args.limit is not None:
        return int(args.limit)
    if args.kv:
        return None
    return _FOLLOWED_FROM if args.follow else _SHOWN


class _Shown:
    """Prints events as lines of columns, or of JSON; what was missed is said on standard error, and
    in JSON in a line of its own."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._as_json = args.kv or args.format == "json"
        self._time = "ts" if args.kv else "at"
        self._lines = Lines(_COLUMNS)
        if not self._as_json:
            # So that it is seen to wait.
            self._lines.begin()

    def show(self, read: EventRows, most: int | None = None) -> None:
        """Print the latest of what was read, `most` of it."""
        for pid, missed in read.missed.items():
            events = "1 event" if missed == 1 else f"{missed:,} events"
            sys.stderr.write(f"omlx-cache: {events} of process {pid} not seen: forgotten by then\n")
            if self._as_json:
                print_json_line({"pid": pid, "missed": missed})
        rows = in_order(read.rows, self._time)
        for row in rows if most is None else rows[len(rows) - min(most, len(rows)) :]:
            if self._as_json:
                print_json_line(row)
            else:
                self._lines.print(_cells(row))
        sys.stdout.flush()


def _cells(row: Map) -> list[object]:
    at = row.get("at")
    moment = float(at) if isinstance(at, int | float) else 0.0
    tokens, nbytes = row.get("tokens"), row.get("nbytes")
    return [
        time.strftime("%H:%M:%S", time.localtime(moment)) + f"{moment % 1:.3f}"[1:],
        row.get("pid"),
        row.get("kind"),
        row.get("tier") or None,
        str(row.get("namespace") or "-")[:_NAMESPACE_DIGITS],
        str(row.get("key") or "-")[:_KEY_DIGITS],
        row.get("group") or None,
        row.get("position") or None,
        tokens or None,
        quantity("bytes", nbytes) if nbytes else None,
        row.get("detail") or None,
    ]


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
