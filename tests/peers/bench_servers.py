"""Set a server's own prompt cache beside this one, in one run: prints rows of a Markdown table.

    bench_servers.py TRACE [--servers NAME ...] [--tokens-per-block N]

TRACE is a file of sessions, a JSON object a line, gzipped or not, as a coding agent makes them:
`requests`, each with `runs` (the prompt's blocks: first id, count, first id, count...). A block
becomes a few characters that follow from its id, so that prompts share what they share in the
trace. Both caches serve the same prompts through HTTP, by the server's own command and by
`omlx-cache run`, and once more in a process that starts anew.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import socket
import statistics
import string
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import OpenAI

from kit.tinylm import make_model

SERVERS = ("mlx_lm.server", "mlx-openai-server")
TURNS = 11
LETTERS = string.ascii_letters + string.digits
# Large enough that a prompt takes longer to compute than a request takes otherwise.
SIZES = {
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "intermediate_size": 768,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}


@dataclass(frozen=True)
class Measured:
    """Seconds to the first token of each turn, of the last again after a restart, and sizes."""

    first_tokens: list[float]
    restarted: float
    resident: int
    disk: int


def prompts(trace: Path, per_block: int) -> list[str]:
    """The first session's prompts, shortened."""
    raw = trace.read_bytes()
    lines = (gzip.decompress(raw) if trace.suffix == ".gz" else raw).splitlines()
    sessions = (json.loads(line)["requests"] for line in lines)
    requests = next(found for found in sessions if len(found) >= TURNS)
    return ["".join(text(block, per_block) for block in blocks(r)) for r in requests[:TURNS]]


def blocks(request: dict[str, Any]) -> Iterator[int]:
    runs = request["runs"]
    for first, count in zip(runs[::2], runs[1::2], strict=True):
        yield from range(first, first + count)


def text(block: int, count: int) -> str:
    return "".join(LETTERS[(block * 2654435761 >> 3 * i) % len(LETTERS)] for i in range(count))


def command(server: str, ours: bool, model: Path, own: Path) -> list[str]:
    arguments = {
        "mlx_lm.server": ["--model", str(model)],
        "mlx-openai-server": [
            *("launch", "--model-path", str(model), "--no-log-file"),
            *("--prompt-cache-dir", str(own)),
        ],
    }[server]
    if ours:
        return ["-m", "omlx_cache_daemon", "run", server, *arguments]
    if server == "mlx_lm.server":
        return ["-m", "mlx_lm", "server", *arguments]
    return ["-c", "from app.cli import cli; cli()", *arguments]


@dataclass
class Running:
    """A server's process."""

    process: subprocess.Popen[bytes]
    client: OpenAI
    model: str

    def first_token(self, prompt: str) -> float:
        """Seconds from the request to the first word of the answer, which is read to its end."""
        began = time.perf_counter()
        stream = self.client.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=4,
            temperature=0,
            stream=True,
        )
        seconds = 0.0
        for chunk in stream:
            if not seconds and chunk.choices and chunk.choices[0].delta.content:
                seconds = time.perf_counter() - began
        return seconds

    def resident(self) -> int:
        return sum(_resident(pid) for pid in _tree(self.process.pid))

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(60)


def start(server: str, ours: bool, model: Path, home: Path) -> Running:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(home / "stand-ins"), *sys.path]),
        "HF_HUB_OFFLINE": "1",
        "OMLX_CACHE_COLD_DIR": str(home / "cold"),
        "OMLX_CACHE_RUNTIME_DIR": str(home / "run"),
        "OMLX_CACHE_MIN_FREE_BYTES": "0",
        "OMLX_CACHE_HOT_BYTES": "2GiB",
        "OMLX_CACHE_COLD_BYTES": "8GiB",
    }
    arguments = command(server, ours, model, home / "own")
    with (home / "log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, *arguments, "--host", "127.0.0.1", "--port", str(port)],
            env=environment,
            stdout=log,
            stderr=log,
            cwd=home,
        )
    client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
    while not _answers(f"http://127.0.0.1:{port}/health"):
        assert process.poll() is None, (home / "log").read_text()
        time.sleep(0.1)
    running = Running(process, client, str(model))
    running.first_token("warm up")
    return running


def measure(server: str, ours: bool, asked: list[str]) -> Measured:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        home = Path(folder)
        stand_in_for_outlines(home / "stand-ins")
        model = make_model(home / "model", "qwen3", **SIZES)
        first = start(server, ours, model, home)
        try:
            seconds = [first.first_token(prompt) for prompt in asked[:-1]]
            resident = first.resident()
            if not ours:
                disk = _size(home / "own")
        finally:
            first.end()
        if ours:
            disk = _size(home / "cold")
        again = start(server, ours, model, home)
        try:
            restarted = again.first_token(asked[-1])
        finally:
            again.end()
    return Measured(seconds, restarted, resident, disk)


def stand_in_for_outlines(folder: Path) -> None:
    """Outlines is for JSON schemas only, and would bring torch."""
    models = folder / "outlines" / "models"
    models.mkdir(parents=True)
    (folder / "outlines" / "__init__.py").write_text("")
    (folder / "outlines" / "processors.py").write_text("JSONLogitsProcessor = None\n")
    (models / "__init__.py").write_text("")
    (models / "transformers.py").write_text(
        "class TransformerTokenizer:\n    def __init__(self, tokenizer):\n        pass\n"
    )


def row(name: str, found: Measured) -> str:
    turns = found.first_tokens
    cells = [
        name,
        f"{1e3 * turns[1]:.0f} ms",
        f"{1e3 * turns[9]:.0f} ms",
        f"{1e3 * statistics.median(turns[1:]):.0f} ms",
        f"{1e3 * found.restarted:.0f} ms",
        f"{found.resident / 2**20:.0f} MiB",
        f"{found.disk / 2**20:.1f} MiB",
    ]
    return f"| {' | '.join(cells)} |"


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def _tree(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    below = children.read_text().split() if children.exists() else []
    return [pid, *(each for child in below for each in _tree(int(child)))]


def _resident(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((1024 * int(x.split()[1]) for x in lines if x.startswith("VmRSS")), 0)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> int:
    parser = argparse.ArgumentParser(description="Set servers' own prompt caches beside this one.")
    parser.add_argument("trace", type=Path)
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=SERVERS)
    parser.add_argument("--tokens-per-block", type=int, default=2, metavar="N")
    args = parser.parse_args()
    asked = prompts(args.trace, args.tokens_per_block)
    print(f"Prompts of {len(asked[0]):,} to {len(asked[-1]):,} tokens.\n")
    print("| cache | turn 2 | turn 10 | median | after a restart | memory | disk |")
    print("|---|---|---|---|---|---|---|")
    for server in args.servers:
        for ours in (False, True):
            found = measure(server, ours, asked)
            name = f"`omlx-cache run {server}`" if ours else f"`{server}`"
            print(row(name, found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
