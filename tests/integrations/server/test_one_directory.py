"""Two servers and an embedded store on one cold directory: what one computed the others restore
while all of them run, and the end of one costs the others nothing."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from mlx_lm import load

from kit.drive import request, settings
from kit.examples import some
from kit.remote.processes import until
from kit.tinylm import Server, serve_ours
from omlx_cache import BlockStore, PrefixCache
from omlx_cache.control.paths import socket_name
from omlx_cache.integrations.mlx_lm import cache_of
from omlx_cache_daemon.client import Client

from .conftest import SYSTEM, Turn, ask

BLOCK = 64
NEW = 16

Messages = list[dict[str, str]]


class Embedded(NamedTuple):
    """A model in this process, whose store is one more on the directory."""

    model: Any
    tokenizer: Any
    cache: PrefixCache

    def ask(self, messages: Messages) -> Turn:
        """One chat completion, greedy, flushed."""
        tokens = self.tokens(messages)
        turn = request(self.model, self.cache, tokens, step=512, new=NEW)
        assert self.cache.store.flush(30)
        return Turn(self.tokenizer.decode(turn.answer), len(tokens), turn.cached)

    def tokens(self, messages: Messages) -> list[int]:
        return list(self.tokenizer.apply_chat_template(messages, add_generation_prompt=True))

    def wait_for(self, messages: Messages) -> None:
        """Wait until what others wrote of a prompt is known here: a session does so for 2 s."""
        until(lambda: self.cache.lookup(self.tokens(messages)).cached_tokens > 0)


Start = Callable[[], Server]


@pytest.fixture(params=some(["dense", "hybrid"], "dense"))
def model(request: pytest.FixtureRequest, models: dict[str, Path]) -> Path:
    return models[request.param]


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("d")


@pytest.fixture
def start(home: Path, model: Path, forks: None) -> Iterator[Start]:
    """Starts servers on the directory, and ends them."""
    with ExitStack() as running:

        def begin() -> Server:
            server = serve_ours(home, "--model", str(model), forked=True)
            running.callback(server.kill)
            return server

        yield begin


@pytest.fixture
def embedded(home: Path, model: Path) -> Iterator[Embedded]:
    (loaded, tokenizer) = load(str(model))[:2]
    with BlockStore(settings(home / "cold", block_size=BLOCK, cold_bytes="1GiB")) as store:
        yield Embedded(loaded, tokenizer, cache_of(loaded, store, str(model)))


def about(topic: str) -> Messages:
    """A prompt of several blocks that shares none with another topic."""
    return [
        {"role": "system", "content": f"{topic}. {SYSTEM}"},
        {"role": "user", "content": f"What about {topic}?"},
    ]


def flush(server: Server, home: Path) -> None:
    reply = Client(socket_name(home / "run", server.process.pid, 0)).call("flush", timeout=30)
    assert reply == {"durable": True}


def assert_restored(turn: Turn, expected: Turn) -> None:
    """The same text, and every whole block of the prompt came from the cache."""
    assert turn.text == expected.text
    assert turn.cached_tokens >= (turn.prompt_tokens - 1) // BLOCK * BLOCK > 0


def test_what_one_computed_the_others_restore_without_a_restart(
    start: Start, embedded: Embedded, home: Path, model: Path, ours: Server
) -> None:
    first, second = start(), start()
    for topic, computes in {"apples": first, "pears": second}.items():
        messages = about(f"{topic} for {model.name}")
        expected = ask(ours, model, messages, max_tokens=NEW)
        assert ask(computes, model, messages, max_tokens=NEW).text == expected.text
        flush(computes, home)
        other = second if computes is first else first
        assert_restored(ask(other, model, messages, max_tokens=NEW), expected)
        embedded.wait_for(messages)
        assert_restored(embedded.ask(messages), expected)
    messages = about(f"plums for {model.name}")
    expected = ask(ours, model, messages, max_tokens=NEW)
    assert embedded.ask(messages).text == expected.text
    for server in (first, second):
        assert_restored(ask(server, model, messages, max_tokens=NEW), expected)
