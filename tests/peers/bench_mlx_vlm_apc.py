"""Sets this cache beside mlx-vlm's APC in its generator, on a trace of agents' sessions.

    PYTHONPATH=.:daemon:storage:FOLDER python tests/peers/bench_mlx_vlm_apc.py TRACE.jsonl.gz

Every system serves the same requests in a process of its own, then one more of each session in a
new process. APC has the settings of its server, with its disk tier. Prints rows of a table.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_vlm import apc
from vlm.drive import Asked, Worker
from vlm.models import build

from benchmarks.replay_trace import ReplayRequest, Scale, read_trace
from omlx_cache import BlockStore, CacheSettings
from omlx_cache.integrations.mlx_vlm import ApcBatchGenerator, ApcManager
from omlx_cache.integrations.mlx_vlm.launch import around

SYSTEMS = {"none": "no cache", "apc": "mlx-vlm's APC", "omlx": "omlx-cache"}
KINDS = ("benched dense", "benched hybrid")
MIB = 1 << 20


@contextmanager
def serving(system: str, model: Any, folder: Path) -> Iterator[Worker]:
    """Give what serves a model, with its disk tier in `folder`; it is written at the end."""
    if system == "omlx":
        settings = CacheSettings(cold_dir=folder, min_free_bytes=0, socket="off")
        with BlockStore(settings) as store:
            manager = ApcManager(store, whole=lambda inner: around(model, inner))
            yield Worker(model, manager, ApcBatchGenerator, prefill_step_size=2048)
            store.flush(600)
        return
    theirs = None
    if system == "apc":
        theirs = apc.from_env("bench", {"enabled": True, "disk_path": str(folder)})
    yield Worker(model, theirs, prefill_step_size=2048)
    if theirs is not None:
        theirs.disk.flush()
        theirs.close()


def tokens_of(request: ReplayRequest) -> list[int]:
    return [ord(character) % 120 for character in request.prompt]


def first_token(worker: Worker, request: ReplayRequest) -> tuple[float, int]:
    """Return the seconds to a request's first token, and what was restored; then end it."""
    began = time.perf_counter()
    generator = worker.generator()
    worker.insert(generator, Asked(tokens_of(request), generate=request.max_tokens))
    seconds, cached = 0.0, 0
    while generator.has_work:
        prompts, generated = generator.next()
        cached = max([cached, *(prompt.cached_tokens for prompt in prompts)])
        if generated and not seconds:
            seconds = time.perf_counter() - began
    generator.close()
    return seconds, cached


def child(system: str, kind: str, phase: str, requests: list[ReplayRequest], folder: Path) -> None:
    """Serve one phase and print what it took, as JSON."""
    model = build(kind)
    turns: Counter[str] = Counter()
    found: dict[str, list[Any]] = defaultdict(list)
    Worker(model).say(tokens_of(requests[0])[:64])
    gc.collect()
    mx.clear_cache()
    weights = mx.get_active_memory()
    most = max(Counter(r.session for r in requests).values())
    with serving(system, model, folder) as worker:
        for request in requests:
            turns[request.session] += 1
            last = turns[request.session] == most
            if last == (phase == "restart"):
                seconds, cached = first_token(worker, request)
                found[str(turns[request.session])].append((seconds, cached, len(request.prompt)))
        gc.collect()
        mx.clear_cache()
        resident = mx.get_active_memory() - weights
    disk = sum(f.stat().st_blocks * 512 for f in folder.rglob("*") if f.is_file())
    print(json.dumps({"turns": found, "resident": resident, "disk": disk}))


def measured(system: str, kind: str, arguments: argparse.Namespace, folder: Path) -> list[str]:
    told = {}
    for phase in ("turns", "restart"):
        command = [sys.executable, __file__, str(arguments.trace), "--child", system, kind, phase]
        command += ["--folder", str(folder), "--sessions", str(arguments.sessions)]
        command += ["--turns", str(arguments.turns), "--per-block", str(arguments.per_block)]
        ended = subprocess.run(command, check=True, capture_output=True, env=os.environ)
        told[phase] = json.loads(ended.stdout.splitlines()[-1])
    row = [kind.removeprefix("benched "), SYSTEMS[system]]
    last = arguments.turns + 1
    for phase, turn in (("turns", 2), ("turns", arguments.turns), ("restart", last)):
        asked = told[phase]["turns"][str(turn)]
        seconds = statistics.median(item[0] for item in asked)
        share = sum(item[1] for item in asked) / sum(item[2] for item in asked)
        row.append(f"{1000 * seconds:.0f} ms ({100 * share:.0f} %)")
    first = told["turns"]
    return [*row, f"{first['resident'] / MIB:.0f} MiB", f"{first['disk'] / MIB:.0f} MiB"]


def main() -> int:
    """Measure every system with every kind of model, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--sessions", type=int, default=3)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--per-block", type=int, default=2, help="tokens for 64 of the trace's")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        scale = Scale(arguments.sessions, arguments.turns + 1, arguments.per_block, longest=6000)
        child(*arguments.child, read_trace(arguments.trace, scale), arguments.folder)
        return 0
    last = arguments.turns
    print(f"| model | cache | turn 2 | turn {last} | turn {last + 1}, restarted | memory | disk |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for kind in KINDS:
        for system in SYSTEMS:
            with tempfile.TemporaryDirectory() as folder:
                row = measured(system, kind, arguments, Path(folder))
            print(f"| {' | '.join(row)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
