"""Two servers, each with a directory of its own, and a store that both use: what one has computed
the other restores; and each serves on when the store is gone."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kit.remote.processes import NotYet, eventually
from kit.remote.redis_servers import RedisServer, redis_server
from kit.tinylm import Server, serve_ours
from omlx_cache.control.paths import socket_name
from omlx_cache_daemon.client import Client

from .conftest import SYSTEM, ask

BLOCK = 64
PASSWORD = "not-to-be-seen"
Start = Callable[[str], Server]


@pytest.fixture
def store() -> Iterator[RedisServer]:
    with redis_server(password=PASSWORD) as server:
        yield server


@pytest.fixture(params=["dense", "hybrid"])
def model(request: pytest.FixtureRequest, models: dict[str, Path]) -> Path:
    return models[request.param]


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("m")


@pytest.fixture
def start(home: Path, model: Path, store: RedisServer, forks: None) -> Iterator[Start]:
    """Starts the server of a machine of some name, and ends all."""
    with ExitStack() as running:

        def begin(machine: str) -> Server:
            server = serve_ours(
                home / machine,
                "--model",
                str(model),
                forked=True,
                OMLX_CACHE_REMOTE=store.url,
                OMLX_CACHE_REMOTE_PASSWORD=PASSWORD,
                # The store may be late on a machine with too much to do.
                OMLX_CACHE_REMOTE_LOOKUP_SECONDS="20",
            )
            running.callback(server.kill)
            return server

        yield begin


def about(topic: str) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": f"{topic}. {SYSTEM}"},
        {"role": "user", "content": f"What about {topic}?"},
    ]


def _stats(server: Server, home: Path) -> dict[str, dict[str, int]]:
    client = Client(socket_name(home / "run", server.process.pid, 0))
    stats: dict[str, dict[str, int]] = client.call("stats", timeout=30)
    return stats


def _sent(server: Server, home: Path) -> None:
    """Return once all that a server has to send is sent."""
    remote = _stats(server, home)["remote"]
    if not remote["written_pages"] or remote["pending_pages"]:
        raise NotYet(str(remote))


def test_what_one_server_computed_another_machine_restores_and_serves_on_without_the_store(
    start: Start, home: Path, model: Path, store: RedisServer, ours: Server
) -> None:
    messages = about(f"apples for {model.name}")
    expected = ask(ours, model, messages)
    one, two = start("one"), start("two")
    assert ask(one, model, messages).text == expected.text
    eventually(lambda: _sent(one, home / "one"), "what was computed is sent")
    elsewhere = ask(two, model, messages)
    assert elsewhere.text == expected.text
    assert elsewhere.cached_tokens >= (elsewhere.prompt_tokens - 1) // BLOCK * BLOCK > 0
    requests = _stats(two, home / "two")["requests"]
    assert requests["restored_remote_tokens"] == elsewhere.cached_tokens
    store.process.kill()
    again = ask(two, model, messages)
    assert (again.text, again.cached_tokens) == (expected.text, elsewhere.cached_tokens)
    other = about(f"plums for {model.name}")
    assert ask(two, model, other).text == ask(ours, model, other).text
    for server in (one, two):
        assert server.stop() == 0, server.text()
        assert PASSWORD not in server.text()
