"""The demo's second process: `python -m omlx_cache.tools.demo.child`, requests on standard input.

It knows nothing but the model, the prompts and the directory, so what it restores came from disk.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omlx_cache.store import BlockStore
from omlx_cache.tools.demo.errors import DemoError
from omlx_cache.tools.demo.prompts import CHUNK
from omlx_cache.tools.demo.runs import Run, run_cached, warm_up
from omlx_cache.tools.demo.store import demo_cache, demo_settings, forget_file_cache
from omlx_cache.tools.demo.subject import load_subject


@dataclass(frozen=True, slots=True)
class Request:
    """What the new process needs to know of a prompt; plain values only."""

    cold_dir: str
    tokens: Sequence[int]
    ends: Sequence[int]
    shared: int
    new_tokens: int
    kv_bytes: int
    hot_bytes: int | None
    block_size: int
    salt: str


def run_in_new_process(model: str | None, requests: Sequence[Request]) -> list[Run]:
    """Start a Python process, let it serve the requests, and return its runs; blocks until then.

    Raises DemoError with the process's last words when it fails.
    """
    ended = subprocess.run(
        [sys.executable, "-m", "omlx_cache.tools.demo.child"],
        input=json.dumps({"model": model, "requests": [asdict(request) for request in requests]}),
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        words = ended.stderr.strip().splitlines() or ["it said nothing"]
        raise DemoError(f"the new process ended with {ended.returncode}: {words[-1]}")
    return [Run.from_dict(run) for run in json.loads(ended.stdout.splitlines()[-1])]


def serve(model: Any, request: Request) -> Run:
    """Restore the prompt from the cold tier, compute the rest, and return the run."""
    cold_dir = Path(request.cold_dir)
    forget_file_cache(cold_dir)
    settings = demo_settings(
        cold_dir, request.kv_bytes, request.block_size, hot_bytes=request.hot_bytes
    )
    with BlockStore(settings, name="demo") as store:
        cache = demo_cache(model, store, len(request.tokens), request.shared)
        run, _seconds = run_cached(
            cache,
            model,
            request.tokens,
            request.ends,
            request.new_tokens,
            lambda _tokens: None,
            salt=request.salt,
        )
        return run


def main() -> int:
    told: dict[str, Any] = json.load(sys.stdin)
    requests = [Request(**fields) for fields in told["requests"]]
    subject = load_subject(told["model"])
    warm_up(subject.model, min(CHUNK, *(len(request.tokens) for request in requests)))
    print(json.dumps([serve(subject.model, request).to_dict() for request in requests]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
