"""`omlx-cache stats`: the counters and gauges of a store, once or again and again."""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping

from omlx_cache_daemon.client import Client
from omlx_cache_daemon.errors import OK, NobodyThere
from omlx_cache_daemon.options import add_format_option, positive_seconds
from omlx_cache_daemon.render import (
    facts,
    is_interactive,
    print_json,
    print_json_line,
    quantity,
)
from omlx_cache_daemon.replies import as_map
from omlx_cache_daemon.stores import add_store_options, the_one

_CLEAR = "\x1b[2J"
_HOME = "\x1b[H"
_CLEAR_REST = "\x1b[J"


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("stats", help="show what a store counts and holds")
    parser.add_argument(
        "--watch", type=positive_seconds, metavar="SECONDS", help="repeat until interrupted"
    )
    add_store_options(parser)
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    client = the_one(args)
    if args.watch is not None:
        return _watch(client, args.watch, as_json=args.format == "json")
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
            pairs = ((path, quantity(path, leaf)) for path, leaf in _leaves(value))
            parts.append(f"{name}\n{facts(pairs, indent='  ')}")
    return "\n".join(parts)


def _leaves(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _watch(client: Client, seconds: float, *, as_json: bool) -> int:
    """Redraw until interrupted, which is the normal end; raises NobodyThere when the store goes."""
    redraws = is_interactive(sys.stdout) and not as_json
    if redraws:
        sys.stdout.write(_CLEAR)
    try:
        while True:
            stats = _fetch(client)
            if as_json:
                print_json_line(stats)
            else:
                text = render(stats)
                sys.stdout.write(f"{_HOME}{text}{_CLEAR_REST}" if redraws else f"{text}\n")
            sys.stdout.flush()
            time.sleep(seconds)
    except KeyboardInterrupt:
        return OK


def _fetch(client: Client) -> dict[str, object]:
    try:
        return as_map(client.call("stats"))
    except NobodyThere as error:
        raise NobodyThere(f"the store has gone: {error}") from error
