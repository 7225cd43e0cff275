"""What a server says that it computed and saved: by the clock on the wall, and after a restart."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.examples import some
from kit.tinylm import Server, serve_ours

from .conftest import SYSTEM, Turn, ask

Start = Callable[..., Server]


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("h")


@pytest.fixture
def start(home: Path, models: dict[str, Path], forks: None) -> Iterator[Start]:
    running: list[Server] = []

    def begin(*flags: str) -> Server:
        flags = ("--model", str(models["dense"]), *flags)
        running.append(serve_ours(home, *flags, forked=True))
        return running[-1]

    yield begin
    for server in running:
        server.kill()


def _stats(home: Path) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "omlx_cache_daemon", "stats", "--format", "json"],
        env={
            **os.environ,
            "OMLX_CACHE_RUNTIME_DIR": str(home / "run"),
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _ask(server: Server, models: dict[str, Path], name: str, **options: Any) -> Turn:
    messages = [{"role": "system", "content": f"{name}. {SYSTEM * 4}"}]
    messages.append({"role": "user", "content": "Say something."})
    return ask(server, models["dense"], messages, **options)


@pytest.mark.parametrize("flags", some([[], ["--draft-model"]], []), ids=["alone", "draft"])
def test_a_request_served_alone_is_measured_too(
    flags: list[str], start: Start, home: Path, models: dict[str, Path]
) -> None:
    server = start(*flags, *(str(models["draft"]) for _ in flags))
    before = _stats(home)["requests"]["prefilled_tokens"]
    # A seed is what mlx-lm serves alone.
    turn = _ask(server, models, "alone", seed=5)
    stats = _stats(home)
    figures = stats["requests"]
    assert figures["prefilled_tokens"] - before == turn.prompt_tokens - turn.cached_tokens
    assert 0 < figures["prefill_seconds"] < stats["uptime_seconds"]
    assert list(figures["prefill_tokens_per_second"]) == ["dense"]
