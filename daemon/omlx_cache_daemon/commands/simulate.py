"""`omlx-cache simulate`: what tiers of other sizes and policies would have served of a trace."""

import argparse
import itertools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from omlx_cache.settings.sizes import counted, duration, format_size
from omlx_cache_daemon.argument_types import positive_count, positive_number, size
from omlx_cache_daemon.errors import OK, CommandError
from omlx_cache_daemon.render import print_answer, table, uses_styles

if TYPE_CHECKING:
    from omlx_cache.simulate.simulator import Outcome, Shape, TierRoom
    from omlx_cache.simulate.traces import Workload

SCHEMA = 1
"""The version of the JSON document: it grows by names, and changes when one changes its meaning."""

_TOKENS = re.compile(r"([0-9]{1,12})([km]?)tok", re.ASCII | re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}
_UPPER_BOUND = (
    "its windows and recurrent snapshots are not replayed: hits are an upper bound for this model"
)
Value = TypeVar("Value")


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "simulate",
        description="Replays traces of requests through this cache's own tiers and policies in "
        "virtual time. It shows what they would have served, written and saved, beside the optimum "
        "of any policy. Lists have commas; all combinations are tried. A size is bytes (4GiB) or "
        "tokens (256ktok). A trace has sessions of coding agents, chat requests (Mooncake), or "
        "what `omlx-cache serve --trace FILE` (OMLX_CACHE_TRACE=FILE) writes, gzipped or not. "
        "See docs/reuse.md.",
    )
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="files of one format")
    for name, metavar, parse, default, about in (
        ("hot", "SIZE", _room, "4GiB", "memory"),
        ("cold", "SIZE", _room, "0", "disk; 0 is none"),
        ("agents", "N", positive_count, "4", "sessions at a time, for traces of sessions"),
    ):
        parser.add_argument(
            f"--{name}",
            type=_list_of(parse),
            default=default,
            metavar=f"{metavar},...",
            help=f"{about} (default: %(default)s)",
        )
    for name, policies, about in (
        ("policy", ("keep", "lru"), "eviction policy"),
        ("write-policy", ("through", "lazy"), "when a page goes to the disk"),
    ):
        parser.add_argument(
            f"--{name}",
            choices=(*policies, ",".join(policies)),
            default=",".join(policies) if name == "policy" else policies[0],
            metavar="NAME,...",
            help=f"{about}: {', '.join(policies)} (default: %(default)s)",
        )
    parser.add_argument(
        "--shuffle", default="", metavar="NAME", help="seed of another order of sessions"
    )
    shapes = parser.add_mutually_exclusive_group()
    shapes.add_argument(
        "--model",
        metavar="MODEL",
        help="a known name, or a model as for `omlx-cache size` (default: as the trace says)",
    )
    shapes.add_argument("--bytes-per-token", type=positive_count, metavar="N")
    parser.add_argument(
        "--block-size",
        type=positive_count,
        metavar="TOKENS",
        help="tokens of a page (default: as the trace says, else 256)",
    )
    for name, metavar, given, about in (
        ("prefill", "TOKENS", 1000.0, "tokens a second that the model computes at position 0"),
        ("doubles", "TOKENS", 32_768.0, "position at which a token takes twice as long"),
        ("read", "GB/S", 2.0, "rate of reads from the disk"),
    ):
        parser.add_argument(
            f"--{name}",
            type=positive_number,
            default=given,
            metavar=metavar,
            help=f"{about} (default: %(default)g)",
        )


def run(args: argparse.Namespace) -> int:
    from omlx_cache.simulate.report import HEADERS, advice, document, row
    from omlx_cache_storage.io_threads import on_another_thread

    # Elsewhere Ctrl-C ends the command at once, and calls of the tiers cost less.
    outcomes, shape = on_another_thread(lambda: _simulated(args), "omlx-cache-simulate")
    work, said = outcomes[0].workload, advice(outcomes)
    notes = [_UPPER_BOUND] if shape.ages else []
    answer = {
        "schema": SCHEMA,
        "requests": len(work.requests),
        "page_references": work.references,
        "tokens_in": work.tokens_in,
        "model": {"name": shape.name, "bytes_per_token": shape.token_bytes},
        "results": [document(outcome) for outcome in outcomes],
        "advice": said,
        "notes": notes,
    }
    shown = (
        f"{counted(len(work.requests), 'request')} over {duration(work.seconds)}, "
        f"{counted(work.tokens_in, 'token')} of prompts; "
        f"{shape.name}, {format_size(shape.token_bytes)} a token\n"
        + "".join(f"Note: {note}\n" for note in notes)
        + "\n"
        + table(HEADERS, [row(outcome) for outcome in outcomes], bold=uses_styles(sys.stdout))
        + "".join(f"\n{line}" for line in said)
        + "\n" * bool(said)
    )
    print_answer(args.format == "json", answer, shown)
    return OK


def _simulated(args: argparse.Namespace) -> "tuple[list[Outcome], Shape]":
    from omlx_cache.simulate.simulator import Costs, Setup, Simulator
    from omlx_cache.simulate.traces import has_sessions, read_traces, workload

    traced = read_traces(args.traces)
    costs = Costs(args.prefill, args.doubles, args.read * 1e9)
    outcomes: list[Outcome] = []
    for agents in args.agents if has_sessions(traced) else [0]:
        work = workload(traced, agents=agents, block_size=args.block_size, shuffle=args.shuffle)
        shape = _shape(args, work)
        simulator = Simulator(work, shape.token_bytes, costs)
        written_by = args.write_policy.split(",")
        lists = args.policy.split(","), args.cold, written_by, args.hot
        for policy, cold, written, hot in itertools.product(*lists):
            # Without a disk the write policies are the same.
            if cold.amount or written == written_by[0]:
                outcomes.append(simulator.run(Setup(agents, hot, cold, policy, written)))
    return outcomes, shape


def _shape(args: argparse.Namespace, work: "Workload") -> "Shape":
    """Return a token's bytes: as requested, from the trace, or of the usual model."""
    from omlx_cache.simulate.simulator import DEFAULT_SHAPE, SHAPES, Shape
    from omlx_cache.tools.size import SizingError, caches_of, estimate

    if args.bytes_per_token:
        return Shape(f"{args.bytes_per_token} bytes a token", args.bytes_per_token)
    if args.model is None and work.bytes_per_token:
        return Shape("the trace's model", work.bytes_per_token)
    known = SHAPES.get((args.model or DEFAULT_SHAPE).strip().lower())
    if known is not None:
        return known
    try:
        sized = estimate(caches_of(args.model))
    except SizingError as error:
        raise CommandError(f"{error}; known by name are {', '.join(SHAPES)}") from None
    paged = sum(group.token_bytes for group in sized.groups if group.kind == "paged")
    if not paged:
        raise CommandError(f"{args.model}: no layer of it keeps every token: it is not simulated")
    return Shape(sized.model_type, paged, any(group.kind != "paged" for group in sized.groups))


def _list_of(parse: Callable[[str], Value]) -> Callable[[str], list[Value]]:
    return lambda text: list(dict.fromkeys(parse(part.strip()) for part in text.split(",")))


def _room(text: str) -> "TierRoom":
    from omlx_cache.simulate.simulator import TierRoom

    match = _TOKENS.fullmatch(text)
    if match is None:
        return TierRoom(size(text))
    return TierRoom(int(match[1]) * _UNITS[match[2].lower()], True)
