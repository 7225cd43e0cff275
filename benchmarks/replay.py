"""Replays agent sessions against mlx-lm's server and against ours, across one restart each.

    python -m benchmarks.replay TRACE.jsonl.gz --markdown out.md --svg out.svg

Both servers run at once and get each request one after the other, first the one and then the
other in turns, so that whatever else the machine does hits both. A request has it to itself.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.arguments import file_to_write
from benchmarks.plot import Plot
from benchmarks.replay_trace import ReplayRequest, Scale, read_trace, write_model

PHASES = ("before the restart", "after it")
START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request took: seconds to its first token and to its last."""

    first_token_s: float
    total_s: float
    prompt_tokens: int
    cached_tokens: int
    text: str


class ReplayServer:
    """Runs `python -m <command> --port <free port>` until `stop`; its log goes to a file."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        with log.open("a") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command, "--port", str(port)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
                stdout=stream,
                stderr=stream,
            )
        self._url = f"http://127.0.0.1:{port}"
        self._wait(log)

    def _wait(self, log: Path) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self._url}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.1)
        self._process.kill()
        raise RuntimeError(f"the server did not start; see {log}")

    def stop(self) -> None:
        """End it as a person would."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(120)

    def ask(self, request: ReplayRequest) -> Answer:
        """Send one streaming completion and read it to its end."""
        body = {
            "prompt": request.prompt,
            "max_tokens": request.max_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        posted = urllib.request.Request(
            f"{self._url}/v1/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        began = time.perf_counter()
        first = 0.0
        text = ""
        usage: dict[str, object] = {}
        with urllib.request.urlopen(posted, timeout=600) as reply:
            for line in reply:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                first = first or time.perf_counter() - began
                usage = event.get("usage") or usage
                text += "".join(choice.get("text") or "" for choice in event["choices"])
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens", 0) if isinstance(details, dict) else 0
        prompt = int(str(usage["prompt_tokens"]))
        return Answer(first, time.perf_counter() - began, prompt, int(cached), text)


Start = Callable[[], ReplayServer]


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
    parser.add_argument("--markdown", type=file_to_write, metavar="FILE")
    parser.add_argument("--svg", type=file_to_write, metavar="FILE")
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


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]


def markdown(runs: Mapping[str, Mapping[str, Sequence[Answer]]]) -> str:
    """Return a table: a row per server and phase."""
    lines = [
        "| server | phase | requests | cached tokens | TTFT p50 | TTFT p95 | total |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for server, phases in runs.items():
        everything = [answer for answers in phases.values() for answer in answers]
        for phase, answers in {**phases, "all": everything}.items():
            firsts = [answer.first_token_s for answer in answers]
            asked = sum(answer.prompt_tokens for answer in answers)
            cached = sum(answer.cached_tokens for answer in answers)
            lines.append(
                f"| {server} | {phase} | {len(answers)} | {cached / asked:.1%} "
                f"| {percentile(firsts, 0.5) * 1000:.0f} ms | {percentile(firsts, 0.95) * 1000:.0f}"
                f" ms | {sum(answer.total_s for answer in answers):.1f} s |"
            )
    return "\n".join(lines) + "\n"


def svg(runs: Mapping[str, Sequence[Answer]], restart: int) -> str:
    """Return a plot: time to first token of each request in order, with the restart marked."""
    plot = Plot(max(answer.first_token_s for answers in runs.values() for answer in answers))
    last = max(1, max(len(answers) for answers in runs.values()) - 1)
    plot.upright((restart - 0.5) / last, "restart")
    for number, (name, answers) in enumerate(runs.items()):
        points = [(index / last, answer.first_token_s) for index, answer in enumerate(answers)]
        plot.dots(number, name, points)
    return plot.end("request, in order of arrival; time to first token")


if __name__ == "__main__":
    raise SystemExit(main())
