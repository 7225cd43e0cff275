"""Restarts, kills and signals: what a server promises to a conversation that outlives it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.examples import some
from kit.tinylm import Server, serve_ours

from .conftest import SYSTEM, ask, converse

Start = Callable[..., Server]


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("h")


@pytest.fixture
def start(home: Path, models: dict[str, Path], forks: None) -> Iterator[Start]:
    """Starts servers that share a cold tier, and ends those that a test left."""
    running: list[Server] = []

    def begin(model: str, *flags: str) -> Server:
        flags = ("--model", str(models[model]), *flags)
        running.append(serve_ours(home, *flags, forked=True))
        return running[-1]

    yield begin
    for server in running:
        server.kill()


def stats(home: Path) -> Any:
    """What `omlx-cache stats` says about the server that runs."""
    environment = {**os.environ, "OMLX_CACHE_RUNTIME_DIR": str(home / "run")}
    done = subprocess.run(
        [sys.executable, "-m", "omlx_cache_daemon", "stats", "--format", "json"],
        env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def wait_until_durable(home: Path) -> None:
    while (writer := stats(home)["writer"])["pending_pages"]:
        assert writer["failed_pages"] == 0


@pytest.mark.parametrize("model", some(["dense", "windowed", "hybrid"], "dense"))
def test_a_chat_goes_on_after_kill_9(
    model: str, start: Start, home: Path, models: dict[str, Path], ours: Server
) -> None:
    expected = converse(ours, models[model], f"kills of {model}")
    messages = [{"role": "system", "content": f"kills of {model}. {SYSTEM}"}]
    for number, turn in enumerate(expected):
        question = f"Question {number} about kills of {model}?"
        messages.append({"role": "user", "content": question})
        server = start(model)
        said = ask(server, models[model], messages)
        assert said.text == turn.text
        # What other tests' chats share with the first turn is less than a block: `ours` has it in
        # memory, a new process cannot.
        assert number == 0 or said.cached_tokens >= turn.cached_tokens > 0
        wait_until_durable(home)
        server.kill()
        messages.append({"role": "assistant", "content": said.text})


@pytest.mark.parametrize("number", some([signal.SIGTERM, signal.SIGINT], signal.SIGTERM))
def test_a_signal_finishes_the_answer_and_writes_everything(
    number: signal.Signals, start: Start, models: dict[str, Path]
) -> None:
    server = start("dense")
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Count."}]
    with server.client() as client:
        stream = client.chat.completions.create(
            model=str(models["dense"]),
            messages=messages,
            max_tokens=500,
            temperature=0,
            stream=True,
            logit_bias={"2": -100.0},
        )
        chunks = [next(stream)]
        server.process.send_signal(number)
        chunks += list(stream)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert server.wait() == 0, server.text()
    assert "Everything is on the disk" in server.text()
    again = ask(start("dense"), models["dense"], messages)
    assert again.cached_tokens == again.prompt_tokens - 1


def test_a_cancelled_stream_leaves_the_server_well(
    ours: Server, theirs: Server, models: dict[str, Path]
) -> None:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Cancel me."}]
    with ours.client() as client:
        stream = client.chat.completions.create(
            model=str(models["dense"]),
            messages=messages,
            max_tokens=2000,
            temperature=0,
            stream=True,
            logit_bias={"2": -100.0},
        )
        next(stream)
        stream.close()
    mine, other = (ask(server, models["dense"], messages) for server in (ours, theirs))
    assert mine.text == other.text
    # The prompt was prefilled, and its parts were stored, before the client left.
    assert mine.cached_tokens > 0


def test_stats_and_log_tell_what_was_restored(
    start: Start, home: Path, models: dict[str, Path]
) -> None:
    server = start("dense")
    converse(server, models["dense"], "numbers", turns=2)
    first = stats(home)["requests"]
    assert first["restored_hot_tokens"] > 0
    assert first["restored_cold_tokens"] == 0
    # Below nothing, where a busy machine restores more slowly than it computes.
    assert first["saved_seconds"] != 0
    # New text, and a turn that goes on from all that was stored: nothing was lost.
    assert first["misses"] == {}
    wait_until_durable(home)
    server.kill()
    server = start("dense")
    turns = converse(server, models["dense"], "numbers", turns=2)
    assert stats(home)["requests"]["restored_cold_tokens"] >= turns[0].prompt_tokens - 1
    assert server.stop() == 0
    line = f"{turns[0].prompt_tokens} tokens in, {turns[0].cached_tokens} restored (0 hot, "
    assert line in server.text()
