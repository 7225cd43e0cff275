"""A chat of ten times `hot_bytes` through the server: every turn finds the one before."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.tinylm import Server, serve_ours

from .conftest import ask
from .test_lifetime import stats, wait_until_durable

TURNS = 12
WORDS = [
    "river",
    "stone",
    "lamp",
    "window",
    "paper",
    "garden",
    "letter",
    "copper",
    "winter",
    "mirror",
]


def question(number: int) -> str:
    return " ".join(random.Random(number).choices(WORDS, k=60))


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("long")


@pytest.fixture
def server(
    request: pytest.FixtureRequest, home: Path, models: dict[str, Path], forks: None
) -> Iterator[Server]:
    model, hot_bytes = request.param
    server = serve_ours(home, "--model", str(models[model]), "--hot-bytes", hot_bytes, forked=True)
    yield server
    server.kill()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("server", "model"),
    [
        (("dense", "192KiB"), "dense"),
        (("windowed", "640KiB"), "windowed"),
        (("hybrid", "640KiB"), "hybrid"),
    ],
    indirect=["server"],
)
def test_a_chat_of_ten_times_the_memory_is_restored_turn_by_turn(
    server: Server, home: Path, models: dict[str, Path], theirs: Server, model: str
) -> None:
    messages: list[dict[str, str]] = []
    before = 0
    for number in range(TURNS):
        messages.append({"role": "user", "content": question(number)})
        turn = ask(server, models[model], messages, max_tokens=8)
        if number % 4 == 3:
            assert turn.text == ask(theirs, models[model], messages, max_tokens=8).text
        assert turn.cached_tokens >= 0.99 * before - 64 * (model != "dense"), f"turn {number}"
        before = turn.prompt_tokens
        messages.append({"role": "assistant", "content": turn.text})
    wait_until_durable(home)
    seen = stats(home)
    assert (
        seen["cold"]["bytes" if "bytes" in seen["cold"] else "nbytes"]
        > 5 * seen["hot"]["limit_bytes"]
    )
    assert seen["hot"]["peak_bytes"] <= seen["hot"]["limit_bytes"]
