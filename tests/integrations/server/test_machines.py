"""Two servers, each with a directory of its own, and a store that both use: what one has computed
the other restores; and each serves on when the store is gone."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from kit.examples import some
from kit.remote.processes import NotYet, eventually
from kit.remote.proxy import Way, proxy_to
from kit.remote.redis_servers import RedisServer, redis_server
from kit.tinylm import LmServer, serve_ours
from omlx_cache.control.socket_paths import socket_name
from omlx_cache_daemon.client import Client

from .conftest import SYSTEM, ask

BLOCK = 64
PASSWORD = "not-to-be-seen"
Start = Callable[..., LmServer]


@pytest.fixture
def store() -> Iterator[RedisServer]:
    with redis_server(password=PASSWORD) as server:
        yield server


@pytest.fixture(params=some(["dense", "hybrid"], "hybrid"))
def model(request: pytest.FixtureRequest, models: dict[str, Path]) -> Path:
    return models[request.param]


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("m")


@pytest.fixture
def start(home: Path, model: Path, store: RedisServer, forks: None) -> Iterator[Start]:
    """Starts the server of a machine of some name, and ends all."""
    with ExitStack() as running:

        def begin(machine: str, url: str = store.url) -> LmServer:
            server = serve_ours(
                home / machine,
                "--model",
                str(model),
                forked=True,
                OMLX_CACHE_REMOTE=url,
                OMLX_CACHE_REMOTE_PASSWORD=PASSWORD,
                # The store may be late on a machine with too much to do.
                OMLX_CACHE_REMOTE_LOOKUP_SECONDS="60",
            )
            running.callback(server.kill)
            return server

        yield begin


def about(topic: str) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": f"{topic}. {SYSTEM}"},
        {"role": "user", "content": f"What about {topic}?"},
    ]


def _sent(server: LmServer, home: Path) -> None:
    """Return once all that a server has to send is sent."""
    client = Client(socket_name(home / "run", server.process.pid, 0))
    remote = client.call("stats")["remote"]
    if not remote["written_pages"] or remote["pending_pages"]:
        raise NotYet(str(remote))


class _Answer:
    """An answer that comes for as long as it is wanted; `count` says how much has come."""

    def __init__(self, server: LmServer, model: Path) -> None:
        self.count = 0
        self._enough = threading.Event()
        self._server, self._model = server, model
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> "_Answer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def more_than(self, count: int) -> None:
        if self.count <= count:
            raise NotYet(f"{self.count} of more than {count}")

    def _read(self) -> None:
        with (
            self._server.client() as client,
            client.completions.create(
                model=str(self._model),
                prompt="Once upon a time",
                max_tokens=1_000_000,
                logit_bias={"2": -100.0, "127": -100.0},
                stream=True,
            ) as chunks,
        ):
            for _ in chunks:
                self.count += 1
                if self._enough.is_set():
                    return


def test_others_are_answered_while_a_request_waits_for_the_store(
    start: Start, home: Path, model: Path, store: RedisServer
) -> None:
    messages = about(f"pears for {model.name}")
    one = start("one")
    expected = ask(one, model, messages)
    eventually(lambda: _sent(one, home / "one"), "what was computed is sent")
    with proxy_to(store.port) as proxy, ThreadPoolExecutor(2) as pool:
        two = start("two", f"redis://{proxy.place}")
        known = about("nothing in particular")
        ask(two, model, known)
        with _Answer(two, model) as answer:
            eventually(lambda: answer.more_than(5), "the answer begins")
            proxy.rules(down=Way(stalls=True))
            asked = proxy.up_bytes
            waits = pool.submit(ask, two, model, messages)
            eventually(lambda: _more(proxy.up_bytes, asked), "the store is asked")
            # All of it is here: nobody is asked for it.
            assert pool.submit(ask, two, model, known).result(40).cached_tokens
            assert not waits.done()
            proxy.free()
            turn = waits.result(60)
            assert turn.text == expected.text
            assert turn.cached_tokens >= (turn.prompt_tokens - 1) // BLOCK * BLOCK > 0
        assert two.stop() == 0, two.text()


def _more(now: int, before: int) -> None:
    if now <= before:
        raise NotYet(f"{now} bytes")
