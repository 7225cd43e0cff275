"""Set this cache beside vllm-mlx's own, in vllm-mlx's own scheduler: requests of a trace of coding
agents, scaled down, one after the other; then a new process that goes on.

    python bench_vllm_mlx.py TRACE [--sessions 4] [--tokens-per-block 4] [--memory-mb 64]

Prints the rows of a table in Markdown. Each system has a process of its own, and another after the
restart. `TRACE` is a file that `omlx-cache bench replay` reads too.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import mlx.core as mx
from driving import Loaded, loaded, prompt_of, store_in
from mlx_lm.utils import load_model, load_tokenizer
from vllm_driving import request, scheduler

from benchmarks.replay_trace import ReplayRequest, Scale, read_trace, write_model
from omlx_cache.integrations.vllm_mlx import install

SYSTEMS = {
    "none": "no cache",
    "own": "its own",
    "own-ssd": "its own, with its SSD tier",
    "ours": "this cache",
}
MODELS = {"dense": "qwen3", "hybrid": "qwen3_next"}
TURNS = 11
MB = 1 << 20


def model_in(directory: Path, kind: str) -> Loaded:
    """Return a small model, written on the first call."""
    if kind == "hybrid":
        return loaded(directory, MODELS[kind])
    path = directory / "dense"
    if not path.exists():
        write_model(path)
    return Loaded(load_model(path)[0], load_tokenizer(path))


def serving(system: str, of: Loaded, directory: Path, memory: int, ended: ExitStack) -> Any:
    """Return a scheduler with a system's cache, of so many MB, loaded and saved as the server does
    when it starts and ends."""
    if system == "none":
        return scheduler(of, enable_prefix_cache=False)
    if system == "ours":
        made = scheduler(of)
        install(made, ended.enter_context(store_in(directory, hot_bytes=memory * MB)))
        return made
    ssd = str(directory) if system == "own-ssd" else None
    made = scheduler(of, cache_memory_mb=memory, ssd_cache_dir=ssd)
    ended.callback(made.close_ssd_tier)
    made.load_cache_from_disk(str(directory / "saved"))
    ended.callback(made.save_cache_to_disk, str(directory / "saved"))
    return made


def served(on: Any, prompt: Sequence[int], most: int) -> tuple[float, int, list[int]]:
    """Serve a request to its end; return the seconds to its first token, the cached tokens and the
    answer."""
    asked = request(prompt, most)
    began = time.perf_counter()
    on.add_request(asked)
    first, cached = 0.0, None
    while on.has_requests():
        on.step()
        if cached is None and asked.request_id in on.running:
            cached = asked.cached_tokens
        if not first and asked.num_output_tokens:
            first = time.perf_counter() - began
    on.remove_finished_request(asked.request_id)
    return first, cached or 0, asked.output_token_ids


class Chats:
    """The prompts of the trace's sessions, with the answers that were given in the place of those
    that the trace has: as a client sends them."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: dict[str, list[Any]] = json.loads(file.read_text()) if file.exists() else {}

    def prompt(self, asked: ReplayRequest) -> list[int]:
        traced = [3 + ord(character) % 120 for character in asked.prompt]
        before, said, answer = self._known.get(asked.session, ([], [], []))
        pairs = enumerate(zip(before, traced, strict=False))
        shared = next((place for place, (a, b) in pairs if a != b), min(len(before), len(traced)))
        prompt = [*said[:shared], *traced[shared:]]
        if shared == len(before):
            room = len(traced) - shared
            prompt[shared : shared + len(answer)] = answer[:room]
        self._known[asked.session] = [traced, prompt, []]
        return prompt

    def answered(self, asked: ReplayRequest, tokens: Sequence[int]) -> None:
        self._known[asked.session][2] = list(tokens)

    def save(self) -> None:
        self._file.write_text(json.dumps(self._known))


def run(system: str, phase: str, given: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Serve the trace's first turns (`serve`), or the one after them in a new process."""
    requests = read_trace(
        given.trace, Scale(given.sessions, TURNS, given.tokens_per_block, given.longest)
    )
    of = model_in(directory.parent, given.kind)
    mx.eval(of.model.parameters())
    weights = mx.get_active_memory()
    measured: dict[int, list[tuple[float, int]]] = {}
    turns: dict[str, int] = {}
    chats = Chats(directory.parent / f"{system}.json")
    with ExitStack() as ended:
        on = serving(system, of, directory, given.memory_mb, ended)
        served(on, prompt_of(700, 77), 4)
        for asked in requests:
            turn = turns[asked.session] = turns.get(asked.session, 0) + 1
            if (phase == "serve") == (turn < TURNS):
                seconds, cached, answer = served(on, chats.prompt(asked), asked.max_tokens)
                chats.answered(asked, answer)
                measured.setdefault(turn, []).append((seconds, cached))
        chats.save()
        mx.clear_cache()
        held = mx.get_active_memory() - weights
        hot = on.memory_aware_cache.memory_usage_mb if on.memory_aware_cache else 0.0
    return {
        "first_token": {turn: statistics.mean(t for t, _ in of) for turn, of in measured.items()},
        "cached": {turn: statistics.mean(c for _, c in of) for turn, of in measured.items()},
        "mlx_mb": held / MB,
        "cache_mb": hot,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "disk_mb": sum(f.stat().st_blocks * 512 for f in directory.rglob("*") if f.is_file()) / MB,
    }


def table(given: argparse.Namespace) -> None:
    """Run every system, and print a row for each."""
    print(
        "| model | cache | TTFT, turn 2 (ms) | turn 10 | after a restart | tokens found, turn 2 "
        "| turn 10 | after a restart | cache in memory (MB) | peak RSS (MB) | on disk (MB) |"
    )
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for kind in given.models:
        with tempfile.TemporaryDirectory() as folder:
            model_in(Path(folder), kind)
            for system, name in SYSTEMS.items():
                directory = Path(folder) / system
                directory.mkdir()
                first, again = (
                    child([*sys.argv[1:], "--kind", kind, "--child", system, phase, str(directory)])
                    for phase in ("serve", "restart")
                )
                print(f"| {kind} | {name} | {row(first, again)} |", flush=True)


def row(first: dict[str, Any], again: dict[str, Any]) -> str:
    times, found = first["first_token"], first["cached"]
    last = str(TURNS)
    cells = [f"{1000 * t:.0f}" for t in (times["2"], times["10"], again["first_token"][last])]
    cells += [f"{c:.0f}" for c in (found["2"], found["10"], again["cached"][last])]
    cells += [f"{first[name]:.0f}" for name in ("cache_mb", "peak_rss_mb", "disk_mb")]
    return " | ".join(cells)


def child(arguments: Sequence[str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, *arguments], check=True, stdout=subprocess.PIPE, text=True
    )
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


def main() -> int:
    """Read the arguments and print the table, or run one system in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--tokens-per-block", type=int, default=4)
    parser.add_argument("--longest", type=int, default=16_000)
    parser.add_argument("--memory-mb", type=int, default=64)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--kind", choices=MODELS, help=argparse.SUPPRESS)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        system, phase, directory = given.child
        print(json.dumps(run(system, phase, given, Path(directory))))
    else:
        table(given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
