"""`omlx-cache ps`: the stores that run on this machine."""

import argparse
import sys
import threading
from collections.abc import Sequence

from omlx_cache.control.errors import ControlError
from omlx_cache.settings.sizes import format_size
from omlx_cache_daemon.errors import OK, NobodyThere
from omlx_cache_daemon.options import add_format_option
from omlx_cache_daemon.render import print_json, quantity, table, text, uses_styles
from omlx_cache_daemon.replies import Map, as_map
from omlx_cache_daemon.stores import RunningStore, add_store_options, chosen, running, services
from omlx_cache_daemon.titles import models, place

_HEADERS = ("PID", "STORE", "UP", "MODELS", "HOT", "COLD", "REMOTE", "PENDING", "SESSIONS")


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "ps",
        help="list the running stores",
        description="Lists this user's running stores with their models and what memory and disk "
        "hold, each of its budget. The disk's is for all that use the directory; own is where this "
        "store stops writing before. off is a disk that cannot be used. REMOTE is the "
        "store that machines share, and how it is.",
    )
    add_store_options(parser)
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    found = _ask_all(_shown(args), args.timeout)
    if args.format == "json":
        print_json(found)
    else:
        rows = [_row(info) for info in found]
        sys.stdout.write(table(_HEADERS, rows, bold=uses_styles(sys.stdout)))
    return OK


def _shown(args: argparse.Namespace) -> list[RunningStore]:
    """Return the stores that are meant; all of them, and the service that runs beside them."""
    if args.socket is not None or args.pid is not None:
        return chosen(args)
    beside = services()
    return [*running(), *beside] if beside else chosen(args)


def _ask_all(stores: Sequence[RunningStore], timeout: float) -> list[Map]:
    """Ask all at once: several that hang are waited for together, and Ctrl-C ends that."""
    replies: dict[int, Map] = {}

    def ask(at: int) -> None:
        replies[at] = _ask(stores[at], timeout)

    asking = [threading.Thread(target=ask, args=(at,), daemon=True) for at in range(len(stores))]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    return [replies[at] for at in range(len(stores))]


def _ask(store: RunningStore, timeout: float) -> Map:
    try:
        reply = as_map(store.client(timeout).call("ps"))
    except (NobodyThere, ControlError) as error:
        # One stuck store must not hide the others.
        reply = {"error": str(error)}
    return {"pid": store.pid, **reply, "socket": str(store.path)}


def _row(info: Map) -> tuple[object, ...]:
    if "error" in info:
        return (info["pid"], f"does not answer: {info['error']}", *[None] * (len(_HEADERS) - 2))
    # The service keeps a directory: it has no memory tier, no writer and no requests.
    of_a_store = {} if info.get("role") == "service" else info
    return (
        info.get("pid"),
        place(info),
        quantity("uptime_s", info.get("uptime_s")),
        models(info) or "-",
        _tier(of_a_store.get("hot")),
        _tier(info.get("cold")),
        _remote(info.get("remote")),
        _tier(of_a_store.get("pending")),
        of_a_store.get("sessions"),
    )


def _remote(value: object) -> str:
    """Return the kind of store that machines share, and how it is: the first word of why it rests
    is enough for a table."""
    if not isinstance(value, dict):
        return "-"
    scheme = text(str(value.get("where"))).partition(":")[0]
    state, _, why = text(str(value.get("state"))).partition(": ")
    word = why.partition(":")[0].removeprefix("remote_")
    return f"{scheme} {state}" + (f" ({word})" if word else "")


def _tier(value: object) -> str:
    if not isinstance(value, dict):
        return "-"
    if str(value.get("state")).startswith("unavailable"):
        return "off"
    used, limit = value.get("bytes"), value.get("limit_bytes")
    if not isinstance(used, int):
        return "-"
    shown = format_size(used) + (f" / {format_size(limit)}" if isinstance(limit, int) else "")
    own = value.get("own_limit_bytes")
    return f"{shown} (own: {format_size(own)})" if isinstance(own, int) else shown
