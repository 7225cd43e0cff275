"""`omlx-cache quota`: what a directory may take, and what is pinned in it."""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from omlx_cache.settings.sizes import SIZE_FORMS, format_size, parse_budget
from omlx_cache_daemon.argument_types import complete_by, period_seconds
from omlx_cache_daemon.client import Client, Map, as_maps, count_of
from omlx_cache_daemon.errors import FAILURE, OK, UsageError
from omlx_cache_daemon.places import add_source_options, known_names, used_directory
from omlx_cache_daemon.render import (
    confirmed,
    facts,
    local_time,
    print_answer,
    quantity,
    table,
    text,
    uses_styles,
    warn,
)
from omlx_cache_daemon.stores import introduced, running
from omlx_cache_daemon.targets import ABOUT, NAMES, Target, add_kind, given_target

_SET_BY = {
    "free space": "auto: the store that uses the directory sets it by the disk's free space",
    "store": "set by a store, as its cold_bytes",
    "quota": "set by omlx-cache quota",
}
_HEADERS = ("PINNED", "NAME", "MODEL", "SINCE", "UNTIL", "PAGES", "BYTES", "BLOCKS")
_SHOWN_DIGITS = 21
"""A salt's kind and its first digits, as `ls` shows them."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "quota",
        description="Shows or changes the budget of a cold directory and its pins. All processes "
        "of the directory share the budget, and running stores follow a SIZE without a restart. "
        "No process evicts a pinned page from the disk, or a pinned chain from memory. A pin also "
        "counts for pages that are stored later. All pins together take at most half of the "
        "budget.",
        epilog="examples: omlx-cache quota 40GiB; omlx-cache quota auto; "
        "omlx-cache quota --pin Qwen3-8B-4bit --for 7d",
    )
    wanted = parser.add_mutually_exclusive_group()
    wanted.add_argument(
        "amount",
        nargs="*",
        default=[],
        metavar="SIZE",
        help="the new budget (40GiB), until the next change; auto: the store that uses the "
        "directory sets it, by its cold_bytes or the disk's free space",
    )
    names = f"{NAMES}|KEY"
    about = ABOUT.format(key=", or the beginning of a block's key for the chain up to it")
    complete_by(
        known_names, wanted.add_argument("--pin", metavar=names, help=f"keep these pages: {about}")
    )
    wanted.add_argument("--unpin", metavar=names, help="end a pin; its pages count as used now")
    wanted.add_argument("--unpin-all", action="store_true", help="end every pin of the directory")
    parser.add_argument(
        "--for",
        dest="period",
        type=period_seconds,
        metavar="PERIOD",
        help="how long a pin lasts (7d, 12h; default: until --unpin)",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask before pages are evicted")
    add_kind(parser, with_key=True)
    add_source_options(parser, "this directory, not that of the running stores")


def run(args: argparse.Namespace) -> int:
    if args.period is not None and args.pin is None:
        raise UsageError("--for says how long --pin lasts; see omlx-cache quota --help")
    # A size may be two words: 10 GiB.
    amount = " ".join(args.amount).strip().lower()
    try:
        wanted = None if amount in ("", "auto") else parse_budget(amount)
    except ValueError as error:
        raise UsageError(f"{amount!r}: {error}; allowed: {SIZE_FORMS}, or auto") from None
    named = args.unpin if args.pin is None else args.pin
    if named is None and args.kind is not None:
        raise UsageError("--as says what the name is of that --pin or --unpin has")
    target = None if named is None else given_target(named, args.kind)
    # Before anything is changed: where stores cannot be looked for, nothing is.
    directory, ended, stores = used_directory(args), [], running()
    # Only here: reading a directory brings NumPy, which a wrong command line does not wait for.
    from omlx_cache_daemon.quotas import change, described, unpin

    if amount:
        if wanted is not None and not args.yes and not _may_evict(directory, wanted, amount):
            return FAILURE
        change(directory, wanted)
    if args.pin is not None and target is not None:
        _pin(directory, target, args.period)
    elif target is not None or args.unpin_all:
        ended = [{"kind": one.kind, "name": one.name} for one in unpin(directory, target)]
    state = {**described(directory), "unpinned": ended}
    print_answer(args.format == "json", state, _shown(state, amount))
    _warn(state, amount, stores)
    return OK


def _may_evict(directory: Path, wanted: int, amount: str) -> bool:
    """Ask before a budget evicts pages; raises UsageError where nobody can be asked."""
    if not directory.is_dir():
        return True
    from omlx_cache_daemon.quotas import described

    state = described(directory)
    used = count_of(state, "used_bytes")
    if not state["page_bytes"] or used <= wanted:
        return True
    evicted = f"{quantity('bytes', used - wanted)} of {quantity('bytes', used)}"
    if not sys.stdin.isatty():
        raise UsageError(
            f"this evicts {evicted} in {directory}, and a question needs a terminal: "
            f"omlx-cache quota {amount} --yes --cold-dir {directory}"
        )
    return confirmed(f"Evict {evicted} in {directory}", "nothing was changed")


def _pin(directory: Path, target: Target, period: float | None) -> None:
    from omlx_cache_daemon.quotas import pin
    from omlx_cache_daemon.selection import select

    selection, now_ns = select(directory, target), time.time_ns()
    pin(directory, selection.pins(now_ns, None if period is None else now_ns + int(period * 1e9)))
    warn(
        {
            "the chain of this block has a gap: what lies before it is not pinned": not (
                selection.is_whole
            )
        }
    )


def _shown(state: Map, amount: str) -> str:
    budget = "none yet: the first store that opens the directory sets it"
    if state["set_by"] is not None:
        origin = (
            "as before, until the store that uses the directory sets it"
            if amount == "auto"
            else _SET_BY.get(str(state["set_by"]), f"set by {state['set_by']}")
        )
        budget = f"{quantity('bytes', state['bytes'])}, {origin}"
    pinned = quantity("bytes", state["pinned_bytes"])
    if state["pinned_limit_bytes"] is not None:
        pinned += f" of at most {quantity('bytes', state['pinned_limit_bytes'])}"
    used, of_pages = (quantity("bytes", state[name]) for name in ("used_bytes", "page_bytes"))
    disk = shutil.disk_usage(str(state["directory"]))
    free = f"{format_size(disk.free)} free of {format_size(disk.total)}" + (
        ", and hardly a file (inode) left: no page can be written" if state["lacks_files"] else ""
    )
    ended, pins = (as_maps(state[name]) for name in ("unpinned", "pins"))
    shown = facts(
        [
            ("directory", state["directory"]),
            ("budget", budget),
            ("used", f"{used}: {of_pages} of pages, the rest is the index and folders"),
            ("disk", free),
            ("pinned", pinned),
        ]
    )
    shown += "".join(f"unpinned {one['kind']} {text(one['name'])}\n" for one in ended)
    pinned_rows = table(_HEADERS, map(_row, pins), bold=uses_styles(sys.stdout))
    return shown + (f"\n{pinned_rows}" if pins else "")


def _row(one: Map) -> tuple[object, ...]:
    name = text(one["name"])
    return (
        one["kind"],
        name if one["kind"] == "model" else name[:_SHOWN_DIGITS],
        one.get("model") or (name if one["kind"] == "model" else None),
        local_time(one["since"]),
        local_time(one["until"]) if one["until"] else "no end",
        quantity("pages", one["pages"]),
        quantity("bytes", one["bytes"]),
        f"{one['blocks_here']} of {one['blocks']}" if "blocks" in one else "-",
    )


def _warn(state: Map, amount: str, stores: Iterable[Client]) -> None:
    """`stores` are asked for their own limits."""
    limit, most_pinned = state["bytes"], state["pinned_limit_bytes"]
    used, disk = count_of(state, "used_bytes"), shutil.disk_usage(str(state["directory"]))
    # A budget that was given back is another one before anything is evicted.
    over = used - limit if isinstance(limit, int) and state["set_by"] != "free space" else 0
    lower = {
        f"{text(row.title)} in process {row.pid} writes no page that takes the directory above its "
        f"own cold_bytes, {format_size(cold.own_limit_bytes)}: restart it with more": True
        for store in (stores if amount != "auto" else ())
        if (row := introduced(store))
        and (cold := row.cold)
        and cold.own_limit_bytes
        and os.path.realpath(cold.dir or "") == os.path.realpath(str(state["directory"]))
    }
    warn(
        {
            "the store that uses the directory sets the budget within seconds, by its cold_bytes "
            f"or the disk's free space; with several stores it stays at {quantity('bytes', limit)} "
            "until one is left": amount == "auto",
            f"{quantity('bytes', over)} of {quantity('bytes', used)} are evicted, used longest ago "
            "first: within seconds by a running store, else by the next one that starts": over > 0,
            f"the disk has {format_size(disk.total)}, of which {format_size(disk.free)} are free: "
            "it is full before the directory has that much": isinstance(limit, int)
            and amount not in ("", "auto")
            and limit > used + disk.free,
            "pins.json says more than this version understands": not state["pins_readable"],
            "pins keep at most half of the budget, and these want more: the ends of their prompts "
            "may be evicted": isinstance(most_pinned, int)
            and count_of(state, "pinned_bytes") > most_pinned,
            **lower,
        }
    )
