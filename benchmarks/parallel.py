"""Asks as many agents at once that have one new system prompt, with sharing in flight and without.

    python -m benchmarks.parallel --markdown out.md --svg out.svg

Two real servers run at once, of which one has `share_wait_seconds` of 0, and are asked in turns, so
that whatever else the machine does hits both. Each has it to itself while it answers.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.parallel_report import Round, Runs, markdown, svg
from benchmarks.replay_model import write_model
from benchmarks.replay_server import ReplayServer
from benchmarks.replay_trace import ALPHABET, ReplayRequest

SERVERS = {"shared in flight": "600", "each for itself": "0"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask both servers and print the table; 1 when their texts differ."""
    args = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="omlx-parallel-") as name:
        home = Path(name)
        model = args.model or str(write_model(home / "model"))
        runs = _measure(home, model, args)
    table = markdown(runs)
    sys.stdout.write(table)
    if args.markdown is not None:
        args.markdown.write_text(table, encoding="utf-8")
    if args.svg is not None:
        args.svg.write_text(svg(runs), encoding="utf-8")
    differing = _differing(runs)
    sys.stdout.write(f"\n{differing} answers differ.\n")
    return 1 if differing else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", help="a model for both servers (default: a small random one)")
    parser.add_argument("--agents", type=int, nargs="+", default=[1, 2, 4, 8], metavar="N")
    parser.add_argument("--system", type=int, default=2000, metavar="CHARACTERS")
    parser.add_argument("--question", type=int, default=60, metavar="CHARACTERS")
    parser.add_argument(
        "--block-size", default="64", metavar="TOKENS", help="small, as the prompts are"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    parser.add_argument("--svg", type=Path, metavar="FILE")
    return parser


def _measure(home: Path, model: str, args: argparse.Namespace) -> Runs:
    servers: dict[str, ReplayServer] = {}
    try:
        for number, (name, seconds) in enumerate(SERVERS.items()):
            servers[name] = _start(home / str(number), model, seconds, args.block_size)
            # The first request of a process compiles and allocates: not what is compared.
            servers[name].ask(ReplayRequest("warm-up", 0.0, "nobody asks this", 1))
        runs: dict[str, dict[int, list[Round]]] = {name: {} for name in servers}
        for turn in range(args.rounds):
            for agents in args.agents:
                prompts = _prompts(args.system, args.question, agents, seed=100 * turn + agents)
                for name in list(servers)[:: -1 if turn % 2 else 1]:
                    runs[name].setdefault(agents, []).append(_ask(servers[name], prompts))
        return runs
    finally:
        for server in servers.values():
            server.stop()


def _start(home: Path, model: str, seconds: str, block_size: str) -> ReplayServer:
    home.mkdir(parents=True)
    command = ["omlx_cache_daemon", "serve", "--model", model, "--cold-dir", str(home / "cold")]
    command += ["--share-wait-seconds", seconds, "--block-size", block_size]
    return ReplayServer(command, {"OMLX_CACHE_RUNTIME_DIR": str(home / "run")}, home / "server.log")


def _prompts(system: int, question: int, agents: int, seed: int) -> list[str]:
    """Return prompts that begin with the same new text, and end each with its own."""
    source = random.Random(seed)
    shared = "".join(source.choices(ALPHABET, k=system))
    # The first characters differ, so that no more than the shared text is the same.
    return [
        shared + ALPHABET[number] + "".join(source.choices(ALPHABET, k=question - 1))
        for number in range(agents)
    ]


def _ask(server: ReplayServer, prompts: Sequence[str]) -> Round:
    """Ask all at once, and wait for all."""
    requests = [ReplayRequest(str(n), 0.0, prompt, 8) for n, prompt in enumerate(prompts)]
    began = time.perf_counter()
    with ThreadPoolExecutor(len(requests)) as pool:
        answers = list(pool.map(server.ask, requests))
    return Round(time.perf_counter() - began, answers)


def _differing(runs: Mapping[str, Mapping[int, Sequence[Round]]]) -> int:
    texts = [
        [answer.text for rounds in server.values() for each in rounds for answer in each.answers]
        for server in runs.values()
    ]
    return sum(one != other for one, other in zip(*texts, strict=True))


if __name__ == "__main__":
    raise SystemExit(main())
