"""`omlx-cache config`: every setting, its value and where the value came from."""

import argparse
import sys

from omlx_cache.control.paths import search_places
from omlx_cache_daemon.configurations import Configuration, of_shell, of_store
from omlx_cache_daemon.errors import OK
from omlx_cache_daemon.options import add_format_option
from omlx_cache_daemon.render import print_json, table, text, uses_styles
from omlx_cache_daemon.stores import RunningStore, add_store_options, chosen, running


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "config",
        help="show each setting and where it came from",
        description="Shows the settings of the running store, and what would be different for one "
        "that is started here. Without a running store, or with --here: the latter.",
    )
    add_store_options(parser)
    parser.add_argument(
        "--here", action="store_true", help="what a store that is started in this shell would have"
    )
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    store = None if args.here else _store(args)
    shown = of_shell() if store is None else of_store(store, args.timeout)
    places = [str(place) for place in search_places()]
    if args.format == "json":
        print_json({**shown.to_dict(), "runtime_dirs": places})
        return OK
    sys.stdout.write(f"{_whose(shown)}\n\n{_table(shown)}")
    sys.stdout.write(f"\nControl sockets are looked for in {text(places)}\n")
    sys.stdout.writelines(f"Note: {text(note)}\n" for note in shown.notes)
    return OK


def _whose(shown: Configuration) -> str:
    process = shown.process
    if process is None:
        return "Settings of a store that is started here"
    here = "; HERE is what one that is started in this shell would have" * bool(shown.here)
    return f"Settings of {text(process['title'])}, process {text(process['pid'])}{here}"


def _table(shown: Configuration) -> str:
    """Return a line for each setting; a store's has what this shell would make of it, if it is
    something else."""
    headers = ["SETTING", "VALUE", "ORIGIN", *["HERE"] * bool(shown.here)]
    rows = [
        [name, setting.get("rendered"), setting.get("origin"), _here(shown, name)][: len(headers)]
        for name, setting in shown.settings.items()
    ]
    return table(headers, rows, bold=uses_styles(sys.stdout))


def _here(shown: Configuration, name: str) -> str:
    other = shown.here.get(name)
    return "" if other is None else f"{other['rendered']} ({other['origin']})"


def _store(args: argparse.Namespace) -> RunningStore | None:
    """Return the store to ask: the one that runs, or that is chosen; None for this shell."""
    if args.pid is not None or args.socket is not None:
        return chosen(args)[0]
    stores = running()
    if len(stores) > 1:
        pids = ", ".join(str(store.pid) for store in stores)
        sys.stderr.write(
            f"omlx-cache: {len(stores)} stores are running (processes {pids}), and this is what "
            "one that is started here would have; --pid shows theirs\n"
        )
    return stores[0] if len(stores) == 1 else None
