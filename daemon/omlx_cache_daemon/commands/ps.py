"""`omlx-cache ps`: the stores that run on this machine."""

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial

from omlx_cache.control.answers import document
from omlx_cache.control.replies import ColdHolding, Holding, ProcessRow, RemoteHolding, last_name
from omlx_cache.settings.sizes import format_size
from omlx_cache_daemon.client import Client
from omlx_cache_daemon.errors import NOBODY_THERE, OK, UsageError
from omlx_cache_daemon.options import add_format_option, positive_seconds
from omlx_cache_daemon.render import duration, print_json, table, uses_styles
from omlx_cache_daemon.replies import Map, as_answer
from omlx_cache_daemon.stores import (
    RunningStore,
    add_store_options,
    candidates,
    chosen,
    running,
    services,
)
from omlx_cache_daemon.watching import StoreQuestion, StoreReply

_HEADERS = (
    *("PID", "STORE", "UP", "MODELS", "HOT", "COLD", "REMOTE", "PENDING", "SESSIONS"),
    *("VERSION", "ANSWERED"),
)


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "ps",
        help="list the running stores",
        description="Lists this user's running stores with their models and what memory and disk "
        "hold, each of its budget. The disk's is for all that use the directory; own is where this "
        "store stops writing before. off is a disk that cannot be used. REMOTE is the "
        "store that machines share, and how it is.",
    )
    parser.add_argument(
        "--watch",
        type=positive_seconds,
        nargs="?",
        const=1.0,
        metavar="SECONDS",
        help="show what they do on a full screen, with a look every second, or so many",
    )
    add_store_options(parser)
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    if args.watch is not None:
        return _watch(args)
    replies = StoreQuestion(_ask, args.timeout).ask(_shown(args))
    if args.format == "json":
        print_json([_document(reply) for reply in replies])
    else:
        rows = map(_row, replies)
        sys.stdout.write(table(_HEADERS, rows, bold=uses_styles(sys.stdout)))
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


def _shown(args: argparse.Namespace) -> list[RunningStore]:
    """Return the stores that are meant; all of them, and the service that runs beside them."""
    if args.socket is not None or args.pid is not None:
        return chosen(args)
    beside = services()
    return [*running(), *beside] if beside else chosen(args)


def _ask(client: Client) -> tuple[ProcessRow, float]:
    began = time.perf_counter()
    reply = client.call("ps")
    return as_answer(ProcessRow, reply), time.perf_counter() - began


def _document(reply: StoreReply) -> Map:
    path = str(reply.store.path)
    if reply.answer is None:
        return {"pid": reply.store.pid, "error": reply.error, "socket": path}
    process, seconds = reply.answer
    return {**document(process), "answered_s": seconds, "socket": path}


def _row(reply: StoreReply) -> Sequence[object]:
    # One stuck store must not hide the others.
    if reply.answer is None:
        shown = (reply.store.pid, f"does not answer: {reply.error}")
        return (*shown, *[None] * (len(_HEADERS) - len(shown)))
    process: ProcessRow = reply.answer[0]
    # The service keeps a directory: it has no memory tier, no writer and no requests.
    is_store = process.role == "store"
    return (
        process.pid,
        process.place,
        duration(process.uptime_s),
        ", ".join(map(last_name, process.models)) or None,
        _held(process.hot) if is_store else None,
        _held(process.cold),
        _remote(process.remote),
        _held(process.pending) if is_store else None,
        process.sessions if is_store else None,
        process.version,
        duration(reply.answer[1]),
    )


def _remote(remote: RemoteHolding | None) -> str | None:
    """Return the kind of store that machines share, and how it is: the first word of why it rests
    is enough for a table."""
    if remote is None:
        return None
    state, _, why = remote.state.partition(": ")
    word = why.partition(":")[0].removeprefix("remote_")
    return f"{remote.where.partition(':')[0]} {state}" + (f" ({word})" if word else "")


def _held(holding: Holding | None) -> str | None:
    if holding is None:
        return None
    shown = format_size(holding.bytes)
    if holding.limit_bytes:
        shown += f" / {format_size(holding.limit_bytes)}"
    if not isinstance(holding, ColdHolding):
        return shown
    if holding.state.startswith("unavailable"):
        return "off"
    own = holding.own_limit_bytes
    return shown if own is None else f"{shown} (own: {format_size(own)})"
