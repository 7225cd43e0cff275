"""Models on disk, and one server of each kind for all tests that do not end theirs."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kit.tinylm import LmServer, make_model, serve_ours, serve_upstream

Start = Callable[..., LmServer]
SYSTEM = "You are a helpful assistant who answers briefly and to the point. " * 3


class FailingModel:
    """A model that raises where `fails` says so of a call's number and tokens; its caches have
    what such a call computed."""

    def __init__(self, model: Any, fails: Callable[[int, Any], bool]) -> None:
        self._model, self.fails, self.calls = model, fails, 0

    def __call__(self, inputs: Any, **options: Any) -> Any:
        self.calls += 1
        logits = self._model(inputs, **options)
        if self.fails(self.calls, inputs):
            raise RuntimeError("the bad token")
        return logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


@dataclass(frozen=True, slots=True)
class ServerReply:
    """What a server said, and how many tokens of the prompt it took from its cache."""

    text: str
    prompt_tokens: int
    cached_tokens: int


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        "dense": make_model(root / "dense", "qwen3"),
        "draft": make_model(root / "draft", "qwen3", seed=7),
        "windowed": make_model(root / "windowed", "gemma3_text"),
        "hybrid": make_model(root / "hybrid", "qwen3_next"),
        "padded": make_model(root / "padded", "jamba"),
        "wide": make_model(root / "wide", "qwen3", head_dim=32),
        "thinking": make_model(root / "thinking", "qwen3", thinking=True),
        "thinking-hybrid": make_model(root / "thinking-hybrid", "qwen3_next", thinking=True),
    }


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("h")


@pytest.fixture
def start(home: Path, models: dict[str, Path], forks: None) -> Iterator[Start]:
    """Starts servers of a model that share a cold tier, and ends those that a test left."""
    running: list[LmServer] = []

    def begin(model: str | Path, *flags: str, **variables: str) -> LmServer:
        path = model if isinstance(model, Path) else models[model]
        flags = ("--model", str(path), *flags)
        running.append(serve_ours(home, *flags, forked=True, **variables))
        return running[-1]

    yield begin
    for server in running:
        server.kill()


@pytest.fixture(scope="session")
def ours(
    models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, forks: None
) -> Iterator[LmServer]:
    server = serve_ours(tmp_path_factory.mktemp("o"), "--model", str(models["dense"]), forked=True)
    yield server
    assert server.stop() == 0, server.text()


@pytest.fixture(scope="session")
def theirs(
    models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, forks: None
) -> Iterator[LmServer]:
    model = str(models["dense"])
    server = serve_upstream(tmp_path_factory.mktemp("t"), "--model", model, forked=True)
    yield server
    server.kill()


def ask(
    server: LmServer, model: Path, messages: list[dict[str, str]], **options: Any
) -> ServerReply:
    """One chat completion."""
    with server.client() as client:
        options = {"max_tokens": 16, "temperature": 0, **options}
        reply = client.chat.completions.create(model=str(model), messages=messages, **options)
    message, usage = reply.choices[0].message, reply.usage
    reasoning = getattr(message, "reasoning", None) or ""
    return ServerReply(
        reasoning + (message.content or ""),
        usage.prompt_tokens,
        usage.prompt_tokens_details.cached_tokens,
    )


def converse(
    server: LmServer, model: Path, topic: str, turns: int = 3, pause: float = 0.0, **options: Any
) -> list[ServerReply]:
    """A chat in which each turn sends back what was said before, after a pause."""
    messages = [{"role": "system", "content": f"{topic}. {SYSTEM}"}]
    said = []
    for number in range(turns):
        time.sleep(pause if number else 0)
        messages.append({"role": "user", "content": f"Question {number} about {topic}?"})
        turn = ask(server, model, messages, **options)
        said.append(turn)
        messages.append({"role": "assistant", "content": turn.text})
    return said


def assert_same_but_cached_more(ours: list[ServerReply], theirs: list[ServerReply]) -> None:
    """Equal texts for equal prompts, and no fewer cached tokens.

    Not of a first turn: what other tests' chats share with it, less than a block, a server has that
    answered them, and a new process cannot have.
    """
    assert [turn.text for turn in ours] == [turn.text for turn in theirs]
    assert [turn.prompt_tokens for turn in ours] == [turn.prompt_tokens for turn in theirs]
    for mine, other in list(zip(ours, theirs, strict=True))[1:]:
        assert mine.cached_tokens >= other.cached_tokens


def cli(home: Path, *arguments: str) -> str:
    """What a command says about the server that runs."""
    done = subprocess.run(
        [sys.executable, "-m", "omlx_cache_daemon", *arguments],
        env={**os.environ, "OMLX_CACHE_RUNTIME_DIR": str(home / "run")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def stats(home: Path) -> Any:
    return json.loads(cli(home, "stats", "--format", "json"))


def wait_until_durable(home: Path) -> None:
    while (writer := stats(home)["writer"])["pending_pages"]:
        assert writer["failed_pages"] == 0
