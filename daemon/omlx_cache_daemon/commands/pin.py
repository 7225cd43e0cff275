"""`omlx-cache pin`: pages of a directory that no process evicts, and which those are."""

import argparse
import sys
import time

from omlx_cache_daemon.errors import OK, UsageError
from omlx_cache_daemon.options import add_format_option, period_seconds
from omlx_cache_daemon.render import facts, print_json, quantity, table, text, uses_styles
from omlx_cache_daemon.replies import Map, as_maps
from omlx_cache_daemon.source import add_source_options, used_directory
from omlx_cache_daemon.targets import PIN_KINDS, given_target

_HEADERS = ("PINNED", "NAME", "MODEL", "SINCE", "UNTIL", "PAGES", "BYTES", "BLOCKS")
_SHOWN_DIGITS = 21


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "pin",
        help="keep pages of a namespace, a model, a salt or a prefix, or show what is kept",
        description="Keeps the pages of a namespace, a model or a salt, or the chain of pages up "
        "to a block: no process evicts them from the disk, nor a chain from memory, whether they "
        "are there already or come later, until it is over or omlx-cache unpin. All pins together "
        "take half of the budget at most. Without a target: shows what is pinned, by "
        "PrefixCache.pin as well.",
    )
    parser.add_argument(
        "target",
        nargs="?",
        metavar="NAMESPACE|MODEL|SALT|KEY",
        help="how a namespace's digest begins, a model's name or directory, a salt, or how a "
        "block's key begins; see ls. - reads it from standard input",
    )
    parser.add_argument(
        "--for",
        dest="period",
        type=period_seconds,
        metavar="PERIOD",
        help="how long (7d, 12h); until unpin unless it is given",
    )
    parser.add_argument("--as", dest="kind", choices=PIN_KINDS, help="what is meant")
    add_source_options(parser, "this directory, whoever uses it")
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    if args.target is None and (args.period is not None or args.kind is not None):
        raise UsageError("say what to pin; see omlx-cache pin --help")
    wanted = None if args.target is None else given_target(args.target)
    directory = used_directory(args)
    # Reading the directory needs NumPy; a wrong command line does not.
    from omlx_cache_daemon.pinned import described, pin
    from omlx_cache_daemon.selection import select

    if wanted is not None:
        selection = select(directory, wanted[0], args.kind, wanted[1])
        now_ns = time.time_ns()
        until_ns = None if args.period is None else now_ns + int(args.period * 1e9)
        pin(directory, selection.pins(now_ns, until_ns))
        if selection.chain is not None and not selection.chain.is_whole:
            sys.stderr.write(
                "omlx-cache: the chain of this block has a gap: what lies before it is not pinned\n"
            )
    state = described(directory)
    if args.format == "json":
        print_json(state)
    else:
        _print(state)
    return OK


def _print(state: Map) -> None:
    taken, limit = state["bytes"], state["limit_bytes"]
    if not state["readable"]:
        sys.stderr.write("omlx-cache: pins.json says more than this version understands\n")
    if not state["pins"]:
        print(f"nothing is pinned in {text(state['directory'])}")
        return
    share = quantity("bytes", taken)
    if isinstance(limit, int):
        share += f" of at most {quantity('bytes', limit)}"
    sys.stdout.write(facts([("directory", state["directory"]), ("pinned", share)]) + "\n")
    rows = [_row(pin) for pin in as_maps(state["pins"])]
    sys.stdout.write(table(_HEADERS, rows, bold=uses_styles(sys.stdout)))
    if isinstance(taken, int) and isinstance(limit, int) and taken > limit:
        sys.stderr.write(
            "omlx-cache: that is more than half of the budget, which is what all pins together "
            "may have: the deep ends are not kept; omlx-cache quota changes the budget\n"
        )


def _row(pin: Map) -> tuple[object, ...]:
    name = text(pin["name"])
    blocks = f"{pin['blocks_here']} of {pin['blocks']}" if "blocks" in pin else "-"
    return (
        pin["kind"],
        name if pin["kind"] == "model" else name[:_SHOWN_DIGITS],
        text(pin.get("model")),
        pin["since"],
        pin["until"] or "unpinned",
        quantity("pages", pin["pages"]),
        quantity("bytes", pin["bytes"]),
        blocks,
    )
