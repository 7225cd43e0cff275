"""`omlx-cache ps`: the stores that run on this machine."""

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from omlx_cache.settings.sizes import duration, format_size
from omlx_cache_daemon.argument_types import positive_number
from omlx_cache_daemon.client import Client, as_map, other_version
from omlx_cache_daemon.errors import NOBODY_THERE, OK, UsageError
from omlx_cache_daemon.render import print_answer, table, uses_styles
from omlx_cache_daemon.stores import (
    StoreQuestion,
    StoreReply,
    add_store_options,
    candidates,
    chosen,
    running,
    services,
)

_HEADERS = (
    *("PID", "STORE", "UP", "MODELS", "HOT", "COLD", "REMOTE", "PENDING", "SESSIONS"),
    *("VERSION", "ANSWERED"),
)
Document = dict[str, Any]
"""A `ProcessRow` as JSON: to import dataclasses takes longer than to ask and to print."""
_READ = frozenset(
    ("pid", "place", "uptime_s", "models", "hot", "cold", "remote", "pending", "sessions")
) | {"role", "version"}


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "ps",
        description="Lists this user's running stores with their models. HOT and COLD show what "
        "memory and disk hold, and the budget. The budget of the disk counts for all processes of "
        "the directory; `own` is a smaller limit of this store. `full` and `failing` are disks "
        "that take no page, `off` is one that cannot be used. `short` is one with too little free, "
        "`no inodes` one with hardly a file left, `rationed` one with daily_write_bytes spent. "
        "REMOTE shows the kind of remote store and its state.",
    )
    parser.add_argument(
        "--watch",
        type=positive_number,
        nargs="?",
        const=1.0,
        metavar="SECONDS",
        help="show what stores do on a full screen, renewed every second or every SECONDS",
    )
    add_store_options(parser)


def run(args: argparse.Namespace) -> int:
    if args.watch is not None:
        return _watch(args)
    replies = StoreQuestion(_ask, args.timeout).ask(_shown(args))
    documents = [_document(reply) for reply in replies]
    shown = table(_HEADERS, map(_row, documents), bold=uses_styles(sys.stdout))
    print_answer(args.format == "json", documents, shown)
    return OK if any(reply.answer for reply in replies) else NOBODY_THERE


def _watch(args: argparse.Namespace) -> int:
    if args.format == "json":
        raise UsageError(
            "--watch is a screen: stats --watch and log --follow print JSON as it comes"
        )
    from omlx_cache_daemon.screen import show

    chosen(args)
    show(partial(candidates, args), args.watch)
    return OK


def _shown(args: argparse.Namespace) -> list[Client]:
    """Return the stores that are meant; all of them, and the service that runs beside them."""
    if args.socket is not None or args.pid is not None:
        return chosen(args)
    beside = services()
    return [*running(), *beside] if beside else chosen(args)


def _ask(client: Client) -> Document:
    began = time.perf_counter()
    reply = as_map(client.call("ps"))
    if not reply.keys() >= _READ:
        raise other_version(f"its answer has no {', '.join(sorted(_READ - reply.keys()))}")
    return {**reply, "answered_s": time.perf_counter() - began}


def _document(reply: StoreReply) -> Document:
    # One stuck store must not hide the others.
    told = {"pid": reply.store.pid, "error": reply.error} if reply.error else reply.answer
    return {**told, "socket": str(reply.store.path)}


def _row(process: Document) -> Sequence[object]:
    if "error" in process:
        shown = (process["pid"], f"does not answer: {process['error']}")
        return (*shown, *[None] * (len(_HEADERS) - len(shown)))
    # The service keeps a directory: it has no memory tier, no writer and no requests.
    is_store, remote = process["role"] == "store", process["remote"]
    return (
        process["pid"],
        process["place"],
        duration(process["uptime_s"]),
        ", ".join(label.rstrip("/").rpartition("/")[2] for label in process["models"]) or None,
        _held(process["hot"]) if is_store else None,
        _held(process["cold"]),
        remote and _remote(remote["where"], remote["state"]),
        _held(process["pending"]) if is_store else None,
        process["sessions"] if is_store else None,
        process["version"],
        f"{1000 * process['answered_s']:.1f} ms",
    )


def _remote(where: str, state: str) -> str:
    """Return the kind of store that machines share, and how it is: the first word of why it rests
    is enough for a table."""
    how, _, why = state.partition(": ")
    word = why.partition(":")[0].removeprefix("remote_")
    return f"{where.partition(':')[0]} {how}" + (f" ({word})" if word else "")


def _held(holding: Document | None) -> str | None:
    """Return how much a tier has of how much, and the first word of a disk's trouble or of its lack
    of room; `off` for one that cannot be used."""
    if holding is None:
        return None
    state = holding.get("state", "ok").partition(":")[0]
    if state == "unavailable":
        return "off"
    shown = format_size(holding["bytes"])
    if limit := holding["limit_bytes"]:
        shown += f" / {format_size(limit)}"
    room = holding.get("room", "ok")
    # More than "full" says: bytes may be free.
    word = "no inodes" if room == "inodes" else room if state == "ok" else state
    if word != "ok":
        shown += f" ({word})"
    own = holding.get("own_limit_bytes")
    return shown if own is None else f"{shown} (own: {format_size(own)})"
