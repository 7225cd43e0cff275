"""Replays agent sessions against mlx-lm's server and against ours, across one restart each.

    python -m benchmarks.replay TRACE.jsonl.gz --markdown out.md --svg out.svg

Both servers run at once and get each request one after the other, first the one and then the
other in turns, so that whatever else the machine does hits both. A request has it to itself.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.replay_model import write_model
from benchmarks.replay_report import markdown, svg
from benchmarks.replay_server import Answer, ReplayServer
from benchmarks.replay_trace import ReplayRequest, Scale, read_trace

Start = Callable[[], ReplayServer]
PHASES = ("before the restart", "after it")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both servers and print the table; 1 when their texts differ."""
    args = _parser().parse_args(arguments)
    scale = Scale(args.sessions, args.requests, args.tokens_per_block, args.longest)
    requests = read_trace(args.trace, scale)
    middle = len(requests) // 2
    with tempfile.TemporaryDirectory(prefix="omlx-replay-") as name:
        home = Path(name)
        model = args.model or str(write_model(home / "model"))
        servers = {"mlx_lm.server": _upstream(home, model), "omlx-cache serve": _ours(home, model)}
        runs: dict[str, dict[str, list[Answer]]] = {server: {} for server in servers}
        for phase, part in zip(PHASES, (requests[:middle], requests[middle:]), strict=True):
            for server, answers in _replay(servers, part).items():
                runs[server][phase] = answers
    table = markdown(runs)
    sys.stdout.write(table)
    flat = {name: [a for part in phases.values() for a in part] for name, phases in runs.items()}
    if args.markdown is not None:
        args.markdown.write_text(table, encoding="utf-8")
    if args.svg is not None:
        args.svg.write_text(svg(flat, middle), encoding="utf-8")
    texts = [[answer.text for answer in answers] for answers in flat.values()]
    differing = sum(a != b for a, b in zip(*texts, strict=True))
    sys.stdout.write(f"\n{differing} of {len(requests)} answers differ.\n")
    return 1 if differing else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("trace", type=Path, help="sessions as JSON Lines, gzipped")
    parser.add_argument("--model", help="a model for both servers (default: a small random one)")
    parser.add_argument("--sessions", type=int, default=12, metavar="N")
    parser.add_argument("--requests", type=int, default=10, metavar="N", help="of each session")
    parser.add_argument("--tokens-per-block", type=int, default=4, metavar="N")
    parser.add_argument("--longest", type=int, default=4000, metavar="TOKENS")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    parser.add_argument("--svg", type=Path, metavar="FILE")
    return parser


def _upstream(home: Path, model: str) -> Start:
    return lambda: ReplayServer(["mlx_lm", "server", "--model", model], {}, home / "upstream.log")


def _ours(home: Path, model: str) -> Start:
    command = ["omlx_cache_daemon", "serve", "--model", model, "--cold-dir", str(home / "cold")]
    variables = {"OMLX_CACHE_RUNTIME_DIR": str(home / "run")}
    return lambda: ReplayServer(command, variables, home / "ours.log")


def _replay(
    starts: Mapping[str, Start], requests: Sequence[ReplayRequest]
) -> dict[str, list[Answer]]:
    servers: dict[str, ReplayServer] = {}
    try:
        for name, start in starts.items():
            servers[name] = start()
            # The first request of a process compiles and allocates: not what is compared.
            servers[name].ask(ReplayRequest("warm-up", 0.0, "nobody asks this", 1))
        answers: dict[str, list[Answer]] = {name: [] for name in servers}
        for number, request in enumerate(requests):
            names = list(servers) if number % 2 else list(servers)[::-1]
            for name in names:
                answers[name].append(servers[name].ask(request))
        return answers
    finally:
        for server in servers.values():
            server.stop()


if __name__ == "__main__":
    raise SystemExit(main())
