"""Requests of traces as short token sequences; traces are given, not part of the project.

Agents' sessions: one block of the trace is one token. Chats (Mooncake): one block is one page.
"""

import gzip
import json
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.replay_trace import Scale, read_trace

from ..world import BLOCK

VARIABLE = "OMLX_CHAOS_TRACES"
LONGEST = 1_000


class TracedRequest(NamedTuple):
    """One request: whose model answers it, its prompt, and how many tokens it generates."""

    lane: int
    tokens: tuple[int, ...]
    answer: int


def find_traces(paths: Sequence[Path]) -> list[Path]:
    """Return the files named, or those of the directory or files that the variable names."""
    named = list(paths) or [Path(p) for p in os.environ.get(VARIABLE, "").split(os.pathsep) if p]
    found = [
        file
        for path in named
        for file in (sorted(path.glob("*.jsonl.gz")) if path.is_dir() else [path])
    ]
    if not found:
        raise SystemExit(f"name the traces, or a directory of *.jsonl.gz in {VARIABLE}")
    return found


def requests_of(path: Path) -> list[TracedRequest]:
    """Return a trace's requests in the order in which they arrive; raises what reading raises."""
    with gzip.open(path, "rt") as lines:
        first = json.loads(next(iter(lines)))
    return list(_chats(path)) if "hash_ids" in first else _agents(path)


def _agents(path: Path) -> list[TracedRequest]:
    scale = Scale(sessions=10**6, requests=10**6, tokens_per_block=1, longest=LONGEST)
    lanes: dict[str, int] = {}
    return [
        TracedRequest(
            lanes.setdefault(request.session, len(lanes)),
            tuple(ord(character) for character in request.prompt),
            request.max_tokens,
        )
        for request in read_trace(path, scale)
    ]


def _chats(path: Path) -> Iterator[TracedRequest]:
    with gzip.open(path, "rt") as lines:
        for line in lines:
            request = json.loads(line)
            blocks = request["hash_ids"][: LONGEST // BLOCK]
            tokens = tuple(token for block in blocks for token in _page(block))
            yield TracedRequest(0, tokens, 1 + request["output_length"] % 24)


def _page(block: int) -> list[int]:
    draw = random.Random(block)
    return [draw.randrange(200, 50_000) for _ in range(BLOCK)]
