"""`omlx-cache stats`: the counters and gauges of a store, or its rates, line by line."""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping

from omlx_cache_daemon.client import Client
from omlx_cache_daemon.errors import OK
from omlx_cache_daemon.options import add_format_option, positive_seconds
from omlx_cache_daemon.rates import COLUMNS, cells, rates
from omlx_cache_daemon.render import facts, print_json, print_json_line, quantity
from omlx_cache_daemon.replies import Map, as_map
from omlx_cache_daemon.stores import add_store_options, the_one
from omlx_cache_daemon.watching import Lines, ask, until_interrupted


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "stats",
        help="show what a store counts and holds",
        description="Shows the counters of one running store since its start, and what its tiers "
        "hold; with --watch, what happens each second.",
    )
    parser.add_argument(
        "--watch",
        type=positive_seconds,
        nargs="?",
        const=1.0,
        metavar="SECONDS",
        help="print a line of rates every second, or so many, until interrupted",
    )
    add_store_options(parser)
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    client = the_one(args)
    if args.watch is not None:
        _watch(client, args.watch, as_json=args.format == "json")
        return OK
    stats = as_map(client.call("stats"))
    if args.format == "json":
        print_json(stats)
    else:
        sys.stdout.write(render(stats))
    return OK


def render(stats: Mapping[str, object]) -> str:
    """Return statistics as text: plain values first, then a section for each inner map."""
    plain = [(name, value) for name, value in stats.items() if not isinstance(value, dict)]
    parts = [facts((name, quantity(name, value)) for name, value in plain)] if plain else []
    for name, value in stats.items():
        if isinstance(value, dict):
            pairs = ((_titled(path), quantity(path, leaf)) for path, leaf in _leaves(value))
            parts.append(f"{name}\n{facts(pairs, indent='  ')}")
    return "\n".join(parts)


def _titled(name: str) -> str:
    return f"{name} (estimate)" if name == "saved_seconds" else name


def _leaves(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _watch(client: Client, seconds: float, *, as_json: bool) -> None:
    """Print a row of rates every so many seconds; the first is the mean since the store's start."""
    before: Map | None = None
    lines = Lines(COLUMNS)

    def look() -> None:
        nonlocal before
        stats = ask(client, "stats")
        row = rates(before, stats)
        before = stats
        if as_json:
            print_json_line({"at": time.time(), **row, "stats": stats})
        else:
            lines.print(cells(row))

    until_interrupted(look, seconds)
