"""`omlx-cache stats`: the counters and gauges of a store, or its rates, line by line."""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from omlx_cache_daemon.client import Client
from omlx_cache_daemon.errors import OK
from omlx_cache_daemon.options import add_format_option, positive_seconds
from omlx_cache_daemon.rates import COLUMNS, cells, rates
from omlx_cache_daemon.render import facts, print_json, print_json_line, quantity, text
from omlx_cache_daemon.replies import as_answer, as_map
from omlx_cache_daemon.stores import RunningStore, add_store_options, chosen, the_one
from omlx_cache_daemon.watching import Lines, ask, until_interrupted
from omlx_cache_storage.stats import Stats


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "stats",
        help="show what a store counts and holds",
        description="Shows the counters of a running store since its start, and what its tiers "
        "hold: of several the sums and each one. With --watch, what happens each second.",
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
    if args.watch is None and len(stores := chosen(args)) > 1:
        return _several(stores, args)
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


def _several(stores: Sequence[RunningStore], args: argparse.Namespace) -> int:
    """Print the sums over all stores, then each; one that does not answer is said to."""
    from omlx_cache_daemon.screen.document import sums_of
    from omlx_cache_daemon.screen.gathering import gathered

    view = gathered(stores, args.timeout)
    document = sums_of(view)
    if args.format == "json":
        print_json(document)
        return OK
    sums = {name: value for name, value in document.items() if name != "processes"}
    parts = [f"{len(view.processes)} stores\n\n{render(sums)}"]
    for process in view.processes:
        stats = {} if process.stats is None else process.stats.to_dict()
        shown = f"{text(process.error)}\n" if process.error else render(stats)
        parts.append(f"{text(process.title)}, process {process.pid}\n\n{shown}")
    sys.stdout.write("\n\n".join(parts))
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
        if isinstance(value, dict) and "buckets" in value:
            yield f"{prefix}{name}", _spread(name, value)
        elif isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _spread(name: str, histogram: Mapping[str, object]) -> str:
    """Return a histogram in a line: how many, their mean, and below what 95 of 100 are."""
    count, total, buckets = (histogram.get(part) for part in ("count", "sum", "buckets"))
    if not isinstance(count, int) or not isinstance(total, int | float) or not count:
        return "0"
    bounds = buckets if isinstance(buckets, list) else []
    below = next((bound for bound, upto in bounds if upto >= 0.95 * count), None)
    most = "95 % beyond all bounds" if below is None else f"95 % within {quantity(name, below)}"
    return f"{count:,}, mean {quantity(name, total / count)}, {most}"


def _watch(client: Client, seconds: float, *, as_json: bool) -> None:
    """Print a row of rates every so many seconds; the first is the mean since the store's start."""
    before: Stats | None = None
    lines = Lines(COLUMNS)

    def look() -> None:
        nonlocal before
        stats = ask(client, "stats")
        now = as_answer(Stats, stats)
        row = rates(before, now)
        before = now
        if as_json:
            print_json_line({"at": time.time(), **row, "stats": stats})
        else:
            lines.print(cells(row))

    until_interrupted(look, seconds)
