"""`omlx-cache stats`: the cache's gains and holdings, in three lines; all counters; or rates."""

import argparse
import time
from collections.abc import Iterator, Mapping
from typing import Any

from omlx_cache.settings.sizes import format_size
from omlx_cache_daemon.argument_types import positive_number
from omlx_cache_daemon.client import Client, as_answer
from omlx_cache_daemon.errors import OK
from omlx_cache_daemon.figures import COLUMNS, SPARE, ask_figures, cells, rates, time_saved, total
from omlx_cache_daemon.render import (
    Lines,
    facts,
    print_answer,
    print_json,
    quantity,
    text,
)
from omlx_cache_daemon.stores import (
    StoreQuestion,
    add_store_options,
    chosen,
    say_who_is_silent,
    the_one,
    until_interrupted,
)
from omlx_cache_storage.breaker import OPENING, UNAVAILABLE
from omlx_cache_storage.stats import Stats

_ROOM = {
    "short": "; the disk is short of free space: see omlx-cache doctor",
    "inodes": "; it has hardly a file (inode) left, however many bytes are free: see omlx-cache "
    "doctor",
    "rationed": "; daily_write_bytes is spent: new pages stay in memory",
}


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "stats",
        description="Shows the share of tokens that came from the cache, the time that this saved, "
        "and memory and disk against their budgets, since the store's start: of several stores the "
        "sums. --all shows every counter, of several stores of each one too. With --watch, what "
        "happens each second, after a line of what happened so far.",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--all", action="store_true", help="show every counter")
    how.add_argument(
        "--watch",
        type=positive_number,
        nargs="?",
        const=1.0,
        metavar="SECONDS",
        help="print a line of rates every second, or so many, until interrupted",
    )
    add_store_options(parser)


def run(args: argparse.Namespace) -> int:
    as_json = args.format == "json"
    if args.watch is not None:
        _watch(the_one(args), args.watch, as_json=as_json)
        return OK
    replies = StoreQuestion(ask_figures, args.timeout).ask(chosen(args))
    say_who_is_silent(replies)
    known = [reply for reply in replies if reply.answer is not None]
    sums = total([reply.answer[1:] for reply in known])
    processes = [
        {
            "pid": reply.store.pid,
            "title": reply.answer.title if reply.answer else "store",
            "socket": str(reply.store.path),
            "error": reply.error,
            "stats": reply.answer and reply.answer.stats.to_dict(),
        }
        for reply in replies
    ]
    each = {"processes": processes, "total": sums.to_dict()}
    parts = [_brief(sums), *([_all(sums)] if args.all else [])]
    if args.all and len(known) > 1:
        parts += [
            f"{text(one.title)}, process {store.pid}\n\n{_all(one.stats)}"
            for store, one, _, _ in known
        ]
    print_answer(as_json, each if len(replies) > 1 else each["total"], "\n".join(parts))
    return OK


def _brief(stats: Stats) -> str:
    requests, hot, cold = stats.requests, stats.hot, stats.cold
    gave = [
        (requests.restored_hot_tokens, "memory"),
        (requests.restored_cold_tokens, "disk"),
        (requests.restored_remote_tokens, "other machines"),
    ]
    share = f"{requests.hit_ratio:.1%} of {requests.asked_tokens:,} came from the cache"
    if parts := ", ".join(f"{count:,} from {tier}" for count, tier in gave if count):
        share += f": {parts}"
    held = f"memory {format_size(hot.nbytes)} of {format_size(hot.limit_bytes)}"
    if cold is not None:
        if not cold.state.startswith(UNAVAILABLE):
            held += f", disk {format_size(cold.nbytes)} of {format_size(cold.limit_bytes)}"
        tried = "" if cold.state == OPENING else "; the next try comes within a minute"
        held += "" if cold.state == "ok" else f"; the disk is {text(cold.state)}{tried}"
        # Of several stores it has a word for each.
        held += "".join(said for word, said in _ROOM.items() if word in cold.room)
    if stats.remote is not None and stats.remote.state != "ok":
        held += f"; the remote store is {text(stats.remote.state)}"
    told = [("tokens", share), ("time", time_saved(requests)), ("holds", held)]
    if requests.prepared_tokens:
        asked = f"{requests.prepared_asked_tokens:,} of them asked for"
        told.append(("prepared", f"{requests.prepared_tokens:,} tokens while idle, {asked}"))
    return facts(told)


def _all(stats: Stats) -> str:
    """Units are those that names end with."""
    return facts((name, quantity(name, value)) for name, value in _leaves(stats.to_dict()))


def _leaves(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, dict) and "buckets" in value:
            yield f"{prefix}{name}", _spread(name, value)
        elif isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _spread(name: str, histogram: Mapping[str, Any]) -> str:
    count, sum_, buckets = (histogram[part] for part in ("count", "sum", "buckets"))
    if not count:
        return "0"
    below = next((bound for bound, upto in buckets if upto >= 0.95 * count), None)
    most = "95 % beyond all bounds" if below is None else f"95 % within {quantity(name, below)}"
    return f"{count:,}, mean {quantity(name, sum_ / count)}, {most}"


def _watch(client: Client, seconds: float, *, as_json: bool) -> None:
    """The first row, `so far`, is the mean since the store's start."""
    before: Stats | None = None
    lines = None if as_json else Lines(COLUMNS, SPARE)

    def look() -> None:
        nonlocal before
        now = as_answer(Stats, client.call("stats"))
        row, at = rates(before, now), time.strftime("%H:%M:%S") if before else "so far"
        before = now
        if lines is None:
            print_json({"at": time.time(), **row, "stats": now.to_dict()}, indent=None)
        else:
            lines.print(cells(row, at))

    until_interrupted(look, seconds)
