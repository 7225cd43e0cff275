"""`omlx-cache quota`: the budget of a cold directory, for all processes that use it."""

import argparse
import sys

from omlx_cache.settings.sizes import SIZE_FORMS, SMALLEST_COLD_BYTES, parse_size
from omlx_cache_daemon.errors import OK, UsageError
from omlx_cache_daemon.options import add_format_option
from omlx_cache_daemon.render import facts, print_json, quantity
from omlx_cache_daemon.replies import Map
from omlx_cache_daemon.source import add_source_options, used_directory

_SET_BY = {
    "free space": "a store, from free space",
    "store": "a store, as its cold_bytes",
    "quota": "omlx-cache quota",
}


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "quota",
        help="show or change what a cold directory may take",
        description="Shows the budget of a cold directory, which all processes share that use it, "
        "and what is used of it; or changes it. Running stores go by it at once, without a "
        "restart.",
        epilog="examples: omlx-cache quota 40GiB; omlx-cache quota auto",
    )
    parser.add_argument(
        "amount",
        nargs="?",
        metavar="SIZE",
        help="the budget (40GiB), which stays until it is changed here; auto: what the stores' "
        "cold_bytes say, or free space",
    )
    add_source_options(parser, "this directory, whoever uses it")
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    amount = None if args.amount is None else args.amount.strip().lower()
    wanted = None if amount in (None, "auto") else _budget(args.amount)
    directory = used_directory(args)
    # Reading the directory needs NumPy; a wrong command line does not.
    from omlx_cache_daemon.quotas import change, described

    if amount is not None:
        change(directory, wanted, make=args.cold_dir is None)
    state = described(directory)
    if args.format == "json":
        print_json(state)
    else:
        _print(state)
    if amount == "auto":
        sys.stderr.write(
            f"omlx-cache: {quantity('bytes', state['bytes'])} counts until a store opens the "
            "directory that is alone there\n"
        )
    nbytes, used = state["bytes"], state["used_bytes"]
    if isinstance(nbytes, int) and isinstance(used, int) and used > nbytes:
        sys.stderr.write(
            "omlx-cache: the directory holds more: a running store evicts it within seconds, else "
            "the next one that opens\n"
        )
    return OK


def _budget(given: str) -> int:
    """Return a budget's bytes; raises UsageError for what is none."""
    try:
        nbytes = parse_size(given)
    except ValueError as error:
        raise UsageError(f"{given!r}: {error}; give {SIZE_FORMS}, or auto") from None
    if 0 < nbytes < SMALLEST_COLD_BYTES:
        # Everything would go at once, and most who write `40` mean another unit.
        raise UsageError(
            f"a budget of {quantity('bytes', nbytes)} has no room for a page; give a unit, as in "
            "40GiB, or 0 for a disk that keeps nothing"
        )
    return nbytes


def _print(state: Map) -> None:
    nbytes, set_by = state["bytes"], state["set_by"]
    budget = "none yet: the first store that opens the directory sets it"
    if set_by is not None:
        budget = f"{quantity('bytes', nbytes)}, set by {_SET_BY.get(str(set_by), set_by)}"
    used = quantity("bytes", state["used_bytes"])
    sys.stdout.write(facts([("directory", state["directory"]), ("budget", budget), ("used", used)]))
