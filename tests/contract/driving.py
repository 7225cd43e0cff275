"""What the tests of the contract share: settings of a private store, requests through public
names, damage to files, and programs in other processes.

A store learns how fast a model is from requests that compute 128 tokens or more, and the model of
arithmetic is faster than any disk: a store that knows that computes instead of reading. Tests that
expect a restore from the disk stay below."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx

from contract.arithmetic import Arithmetic
from kit.forks import CAN_FORK, Forked, fork
from omlx_cache import CacheSettings, CommitResult, PrefixCache

BLOCK = 32
SLACK = 10.0
"""Seconds that a call may take beyond its deadline on a machine that has other work."""


def settings(directory: Path, **fields: Any) -> CacheSettings:
    """Settings of a store that no other test meets: no socket, budgets that no test reaches."""
    return CacheSettings(
        **{
            "cold_dir": directory,
            "cold_bytes": "256MiB",
            "hot_bytes": "64MiB",
            "queue_bytes": "64MiB",
            "min_free_bytes": 0,
            "durability": "none",
            "socket": "off",
            "block_size": BLOCK,
            **fields,
        }
    )


@dataclass
class Turn:
    """One request: what was restored, what of it was wrong, and what was stored."""

    cached: int
    reason: str | None
    wrong: str = ""
    logits: list[mx.array] = field(default_factory=list)
    result: CommitResult | None = None


def ask(
    model: Arithmetic,
    cache: PrefixCache,
    tokens: Sequence[int],
    *,
    commit: bool = True,
    step: int = BLOCK,
    **options: Any,
) -> Turn:
    """A request to the model of arithmetic: restore, look at every byte, feed the rest, commit."""
    with cache.session(tokens, **options) as session:
        at = session.cached_tokens
        turn = Turn(at, session.miss_reason, model.wrong(session.prompt_cache, tokens, at))
        for chunk in session.prefill_chunks(step=step):
            model.feed(session.prompt_cache, chunk, at)
            at += len(chunk)
        assert at == len(tokens)
        if commit:
            turn.result = session.commit()
    return turn


def compute(
    model: Any, cache: PrefixCache, tokens: Sequence[int], *, step: int = BLOCK, **options: Any
) -> Turn:
    """A request to a real model: restore, prefill, commit; the logits of each step."""
    with cache.session(tokens, **options) as session:
        turn = Turn(session.cached_tokens, session.miss_reason)
        for chunk in session.prefill_chunks(step=step):
            turn.logits.append(logits_of(model, chunk, session.prompt_cache))
        turn.result = session.commit()
    return turn


def logits_of(model: Any, chunk: Sequence[int], prompt_cache: Sequence[Any]) -> mx.array:
    logits = model(mx.array([list(chunk)]), cache=prompt_cache)[0]
    mx.eval(logits)
    return logits


def pages(directory: Path) -> list[Path]:
    """The page files of a cold directory, root first where they are one chain."""
    found = directory.glob("*/*/*.safetensors")
    return sorted(found, key=lambda path: (int(path.name.split("-")[2]), path.name))


def disk_bytes(directory: Path, writers: Sequence["Child"] = ()) -> int:
    """What a directory takes on the disk, itself included, as `du` counts. Writers stand still
    meanwhile: else what one deletes and writes while others are counted may count twice."""
    for writer in writers:
        os.kill(writer.process.pid, signal.SIGSTOP)
    try:
        total, seen = 0, [directory]
        known: set[int] = set()
        while seen:
            path = seen.pop()
            try:
                info = path.lstat()
                # A file that got another name meanwhile is one file.
                total += 0 if info.st_ino in known else info.st_blocks * 512
                known.add(info.st_ino)
                if path.is_dir() and not path.is_symlink():
                    seen += path.iterdir()
            except FileNotFoundError:
                continue
        return total
    finally:
        for writer in writers:
            os.kill(writer.process.pid, signal.SIGCONT)


def environment(*roots: Path, **variables: str) -> dict[str, str]:
    """The environment of a child: the software of `roots` (this process's own without any), the
    tests' helpers, and no setting of whoever runs the tests."""
    tests = Path(__file__).resolve().parents[1]
    paths = [str(root / folder) for root in roots for folder in (".", "daemon", "storage")]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OMLX_")}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join([*paths, *sys.path, str(tests)]),
        # `python -m` would look into the current directory first.
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        **variables,
    }


class Child:
    """A Python program in a process of its own, which says a JSON document a line. `python -m`
    programs are forked from a process that has imported MLX, where the system can do that."""

    def __init__(
        self, arguments: Sequence[str], *, env: dict[str, str], log: Path, forked: bool = False
    ) -> None:
        self.log = log
        theirs, mine = os.pipe()
        self._stdin = os.fdopen(mine, "w")
        self.process: subprocess.Popen[str] | Forked
        try:
            with log.open("a") as stderr:
                if forked and CAN_FORK and arguments[0] == "-m":
                    self.process = fork(list(arguments[1:]), env, stderr.fileno(), theirs)
                else:
                    self.process = subprocess.Popen(
                        [sys.executable, *arguments],
                        env=env,
                        stdin=theirs,
                        stdout=subprocess.PIPE,
                        stderr=stderr,
                        text=True,
                    )
        finally:
            os.close(theirs)

    def tell(self, document: object) -> None:
        self._stdin.write(json.dumps(document) + "\n")
        self._stdin.flush()

    def hear(self) -> Any:
        """The next document; fails with the log of a child that ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the process ended ({self.process.wait(60)})\n{self.text()}")
        return json.loads(line)

    def ask(self, document: object) -> Any:
        self.tell(document)
        return self.hear()

    def heard_so_far(self) -> Iterator[Any]:
        """What it says until it ends; a torn last line is no document."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):
                yield json.loads(line)

    def says_something(self, seconds: float) -> bool:
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], seconds)[0])

    def text(self) -> str:
        return self.log.read_text()

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.end()

    def end(self, seconds: float = 60.0) -> int:
        """Close its input, wait for its end and return its exit code."""
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        code = self.process.wait(seconds)
        self.process.stdout.close()
        return code


def until(true: Any, seconds: float = 30.0) -> bool:
    """Poll what another process or thread is about to make true, and offers nothing to wait on."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
