"""`omlx-cache simulate`: what tiers of other sizes and policies would have served of a trace."""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from omlx_cache.settings.sizes import parse_size
from omlx_cache_daemon.errors import OK, CommandError, UsageError
from omlx_cache_daemon.options import add_format_option, positive_count
from omlx_cache_daemon.render import duration, print_json, table, uses_styles

if TYPE_CHECKING:
    from omlx_cache.simulate.fleet import FleetOutcome
    from omlx_cache.simulate.requests import Workload
    from omlx_cache.simulate.run import Outcome, Room
    from omlx_cache.simulate.shapes import Shape

SCHEMA = 1
"""The version of the JSON document: it grows by names, and changes when one changes its meaning."""

_TOKENS = re.compile(r"([0-9]{1,12})([kKmM]?)tok", re.ASCII)
_TOKEN_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}
_MOST_COMBINATIONS = 10_000
Value = TypeVar("Value")


class _Size(NamedTuple):
    """A budget as it was given: bytes, or tokens."""

    amount: int
    is_tokens: bool


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "simulate",
        help="replay a trace through tiers of other sizes",
        description="Replays traces of requests through this cache's own tiers and policies in "
        "virtual time, and tells what they would have served, written and saved, beside the most "
        "that any policy could have. Lists, with commas between, are tried in all combinations. "
        "Traces: sessions of coding agents, chat requests (Mooncake), and what "
        "`omlx-cache serve --trace FILE` or the setting `trace` (OMLX_CACHE_TRACE=FILE) writes; "
        "gzip or not. See docs/reuse.md.",
    )
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="files of one format")
    _add_tiers(parser)
    _add_model(parser)
    _add_fleet(parser)
    parser.add_argument(
        "--agents",
        type=_list_of(positive_count),
        default=[4],
        metavar="N,...",
        help="sessions at a time, for traces of sessions (default: 4)",
    )
    parser.add_argument(
        "--shuffle", default="", metavar="NAME", help="another order of sessions, the one so named"
    )
    parser.add_argument("--plot", metavar="FILE", help="write hits against room there, as SVG")
    parser.add_argument(
        "--json", dest="format", action="store_const", const="json", help="as --format json"
    )
    add_format_option(parser)


def _add_tiers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("tiers", "A size is bytes (4GiB) or tokens (256ktok).")
    group.add_argument(
        "--hot",
        type=_list_of(_size),
        default=[_Size(4 << 30, False)],
        metavar="SIZE,...",
        help="memory (default: 4GiB)",
    )
    group.add_argument(
        "--cold",
        type=_list_of(_size),
        default=[_Size(0, False)],
        metavar="SIZE,...",
        help="disk (default: 0, none)",
    )
    group.add_argument(
        "--policy",
        type=_list_of(str),
        metavar="NAME,...",
        help="what leaves first (default: all there are)",
    )
    group.add_argument(
        "--write-policy",
        type=_list_of(str),
        default=["through"],
        metavar="NAME,...",
        help="when a page goes to the disk: through, lazy (default: through)",
    )


def _add_fleet(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "machines", "Each has the tiers above; with one value of each list. See docs/remote.md."
    )
    group.add_argument(
        "--machines", type=_list_of(positive_count), metavar="N,...", help="how many (default: one)"
    )
    group.add_argument(
        "--remote",
        type=_list_of(_remote),
        default=[_Size(0, False)],
        metavar="SIZE,...",
        help="a store that all share; `all` keeps everything (default: 0, none)",
    )
    group.add_argument(
        "--assign",
        type=_list_of(str),
        default=["session", "prefix"],
        metavar="RULE,...",
        help="which machine a request goes to: in turn by request or by session, or prefix, where "
        "most of it is (default: session,prefix)",
    )


def _add_model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model", "What a token takes, and what it costs.")
    shapes = group.add_mutually_exclusive_group()
    shapes.add_argument(
        "--model", metavar="NAME", help="a model known by name (default: as the trace says)"
    )
    shapes.add_argument("--config", metavar="PATH", help="the config.json of another model")
    shapes.add_argument("--bytes-per-token", type=positive_count, metavar="N")
    group.add_argument(
        "--block-size",
        type=positive_count,
        metavar="TOKENS",
        help="tokens of a page (default: as the trace says, else 256)",
    )
    group.add_argument(
        "--prefill",
        type=_rate,
        default=1000.0,
        metavar="TOKENS",
        help="computed a second at the head of a prompt (default: 1000)",
    )
    group.add_argument(
        "--doubles",
        type=positive_count,
        default=32_768,
        metavar="TOKENS",
        help="how deep a token takes twice as long to compute (default: 32768)",
    )
    group.add_argument(
        "--read",
        type=_rate,
        default=2.0,
        metavar="GB/S",
        help="what the disk gives (default: 2)",
    )


def run(args: argparse.Namespace) -> int:
    from omlx_cache.simulate.errors import SimulationError, TraceError
    from omlx_cache_storage.readers import on_another_thread

    if args.machines or any(size is None or size.amount for size in args.remote):
        return _run_fleet(args)
    try:
        # Elsewhere Ctrl-C ends the command at once, and calls of the tiers cost less.
        outcomes, shape = on_another_thread(lambda: _simulated(args), "omlx-cache-simulate")
    except (TraceError, SimulationError) as error:
        raise CommandError(str(error)) from None
    if args.plot:
        from omlx_cache.simulate.plot import svg

        Path(args.plot).write_text(svg(outcomes), encoding="utf-8")
    from omlx_cache.simulate.advice import advice

    said = advice(outcomes)
    if args.format == "json":
        print_json(_document(outcomes, shape, said))
    else:
        sys.stdout.write(_report(outcomes, shape, said))
    return OK


def _run_fleet(args: argparse.Namespace) -> int:
    from omlx_cache.simulate.errors import SimulationError, TraceError
    from omlx_cache_daemon.fleet import report, results
    from omlx_cache_storage.readers import on_another_thread

    if args.plot:
        raise UsageError("--plot draws one machine: leave --machines and --remote out")
    try:
        outcomes, shape = on_another_thread(lambda: _simulated_fleet(args), "omlx-cache-simulate")
    except (TraceError, SimulationError) as error:
        raise CommandError(str(error)) from None
    if args.format == "json":
        model = {"name": shape.name, "bytes_per_token": shape.token_bytes}
        print_json({"schema": SCHEMA, "model": model, "fleets": results(outcomes)})
    else:
        sys.stdout.write(report(outcomes, shape))
    return OK


def _simulated_fleet(args: argparse.Namespace) -> "tuple[list[FleetOutcome], Shape]":
    from omlx_cache.simulate.fleet import FleetSetup, run_fleet
    from omlx_cache.simulate.run import Room, Setup, check
    from omlx_cache.simulate.traces import read_traces

    policies = args.policy or ["keep"]
    given = (args.hot, args.cold, policies, args.write_policy, args.agents)
    if any(len(values) > 1 for values in given):
        raise UsageError("with --machines or --remote give one value of each other list")
    trace = read_traces([Path(path) for path in args.traces])
    agents = args.agents[0] if trace.sessions else 0
    setup = Setup(
        agents, Room(*args.hot[0]), Room(*args.cold[0]), policies[0], args.write_policy[0]
    )
    check([setup])
    workload = trace.workload(
        agents=args.agents[0], block_size=args.block_size, shuffle=args.shuffle
    )
    shape = _shape(args, workload)
    rules = args.assign if workload.requests and trace.sessions else _without_sessions(args.assign)
    outcomes = [
        run_fleet(workload, shape, FleetSetup(setup, count, rule, size and Room(*size)))
        for count in args.machines or [1]
        for rule in rules
        for size in args.remote
    ]
    return outcomes, shape


def _without_sessions(rules: Sequence[str]) -> list[str]:
    """Return rules for a trace that names no session: each request is one."""
    return list(dict.fromkeys("request" if rule == "session" else rule for rule in rules))


def _simulated(args: argparse.Namespace) -> "tuple[list[Outcome], Shape]":
    from omlx_cache.simulate.costs import Costs
    from omlx_cache.simulate.run import POLICIES, Room, Simulator, check, combinations
    from omlx_cache.simulate.traces import read_traces

    hot, cold = ([Room(*size) for size in sizes] for sizes in (args.hot, args.cold))
    trace = read_traces([Path(path) for path in args.traces])
    agents = args.agents if trace.sessions else [0]
    setups = list(combinations(agents, hot, cold, args.policy or list(POLICIES), args.write_policy))
    check(setups)
    if len(setups) > _MOST_COMBINATIONS:
        raise UsageError(f"{len(setups):,} combinations: give shorter lists")
    costs = Costs(args.prefill, args.doubles, args.read * 1e9)
    outcomes: list[Outcome] = []
    shape: Shape | None = None
    for number in agents:
        workload = trace.workload(agents=number, block_size=args.block_size, shuffle=args.shuffle)
        shape = shape or _shape(args, workload)
        simulator = Simulator(workload, shape, costs)
        outcomes += [simulator.run(setup) for setup in setups if setup.agents == number]
    assert shape is not None
    return outcomes, shape


def _shape(args: argparse.Namespace, workload: "Workload") -> "Shape":
    from omlx_cache.simulate.shapes import DEFAULT_SHAPE, SHAPES, Shape, shape_of, shape_of_config

    if args.bytes_per_token:
        return Shape(f"{args.bytes_per_token} bytes a token", args.bytes_per_token)
    if args.config is not None:
        return shape_of_config(args.config)
    if args.model is not None:
        return shape_of(args.model)
    if workload.bytes_per_token:
        return Shape("the trace's model", workload.bytes_per_token)
    return SHAPES[DEFAULT_SHAPE]


_UPPER_BOUND = (
    "its windows and recurrent snapshots are not replayed: hits are an upper bound for this model"
)
_HEADERS = (
    "AGENTS", "MEMORY", "DISK", "POLICY", "WRITTEN", "HITS", "OF IT DISK", "OPTIMUM", "RATIO",
    "SAVED A DAY", "WRITES", "A TOKEN", "EVICTED", "REFUSED",
)  # fmt: skip


def _report(outcomes: "Sequence[Outcome]", shape: "Shape", said: Sequence[str]) -> str:
    from omlx_cache.settings.sizes import format_size

    first = outcomes[0]
    head = (
        f"{first.requests:,} requests over {duration(first.seconds)}, "
        f"{first.tokens_in:,} tokens of prompts; {shape.name}, "
        f"{format_size(shape.token_bytes)} a token\n\n"
    )
    if shape.aging:
        head = f"{head.rstrip()}\nNote: {_UPPER_BOUND}\n\n"
    body = table(_HEADERS, [_row(outcome) for outcome in outcomes], bold=uses_styles(sys.stdout))
    return head + body + ("\n" if said else "") + "".join(f"{_sentence(line)}\n" for line in said)


def _row(outcome: "Outcome") -> tuple[str, ...]:
    from omlx_cache.settings.sizes import format_size
    from omlx_cache.simulate.advice import describe

    setup = outcome.setup
    saved = outcome.saved_each_day()
    disk = outcome.cold_tokens / outcome.tokens if outcome.tokens else 0.0
    has_disk = bool(setup.cold.amount)
    return (
        str(setup.agents) if setup.agents else "-",
        describe(setup.hot),
        describe(setup.cold) if has_disk else "-",
        setup.policy,
        setup.write_policy if has_disk else "-",
        f"{100 * outcome.share:.1f} %",
        f"{100 * disk:.1f} %",
        f"{100 * outcome.optimum_share:.1f} %",
        f"{outcome.ratio:.3f}",
        "-" if saved is None else duration(max(0.0, saved)),
        format_size(outcome.written_bytes) if has_disk else "-",
        format_size(int(outcome.written_per_token)) if has_disk else "-",
        f"{outcome.evicted_pages + outcome.cold_evicted_pages:,}",
        f"{outcome.refused_pages + outcome.cold_refused_pages:,}",
    )


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _document(
    outcomes: "Sequence[Outcome]", shape: "Shape", said: Sequence[str]
) -> dict[str, object]:
    first = outcomes[0]
    return {
        "schema": SCHEMA,
        "requests": first.requests,
        "page_references": first.references,
        "tokens_in": first.tokens_in,
        "model": {"name": shape.name, "bytes_per_token": shape.token_bytes},
        "results": [_result(outcome) for outcome in outcomes],
        "advice": list(said),
        "notes": [_UPPER_BOUND] if shape.aging else [],
    }


def _result(outcome: "Outcome") -> dict[str, object]:
    setup = outcome.setup
    return {
        "agents": setup.agents or None,
        "hot": _room(setup.hot, outcome.hot_bytes),
        "cold": _room(setup.cold, outcome.cold_bytes),
        "policy": setup.policy,
        "write_policy": setup.write_policy if setup.cold.amount else None,
        "trace_seconds": outcome.seconds,
        "hit_tokens": outcome.tokens,
        "hot_tokens": outcome.hot_tokens,
        "cold_tokens": outcome.cold_tokens,
        "share": outcome.share,
        "optimum_tokens": outcome.optimum_tokens,
        "optimum_share": outcome.optimum_share,
        "ratio": outcome.ratio,
        "saved_seconds": outcome.saved_seconds,
        "saved_seconds_per_day": outcome.saved_each_day(),
        "read_bytes": outcome.read_bytes,
        "written_bytes": outcome.written_bytes,
        "written_bytes_per_token": outcome.written_per_token,
        "evicted_pages": outcome.evicted_pages,
        "refused_pages": outcome.refused_pages,
        "cold_evicted_pages": outcome.cold_evicted_pages,
        "cold_refused_pages": outcome.cold_refused_pages,
    }


def _room(room: "Room", nbytes: int) -> dict[str, object]:
    return {"bytes": nbytes, "tokens": room.amount if room.is_tokens else None}


def _list_of(parse: Callable[[str], Value]) -> Callable[[str], list[Value]]:
    """Return what reads values with commas between; argparse reports anything else."""

    def read(text: str) -> list[Value]:
        return list(dict.fromkeys(parse(part.strip()) for part in text.split(",")))

    return read


def _size(text: str) -> _Size:
    match = _TOKENS.fullmatch(text)
    if match is not None:
        return _Size(int(match[1]) * _TOKEN_UNITS[match[2].lower()], True)
    try:
        return _Size(parse_size(text), False)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is {error}: give a size such as 4GiB, or tokens such as 256ktok"
        ) from None


def _remote(text: str) -> _Size | None:
    return None if text == "all" else _size(text)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return rate
