"""Stores that answer what they should not: a read ends in time, takes no more memory than was asked
for, and what comes next on a connection is an answer to what was asked on it."""

import os
import socketserver
import threading
import time
import tracemalloc
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kit.units import MIB
from kit.work import traced_memory

pytest.importorskip("redis", reason="needs the clients: pip install 'omlx-cache[remote]'")

from kit.remote.engines import engine_at, reason_of
from omlx_cache_storage.remote.engine import Part, RemoteEngine, RemoteError
from omlx_cache_storage.remote.redis_engine import PART_BYTES

HONEST = b"what was asked for"


class _Redis(socketserver.ThreadingTCPServer):
    """Speaks as much of the protocol as reads take: honest, but for the next answers in `lies`."""

    daemon_threads = False
    block_on_close = True

    def __init__(self) -> None:
        self.lies: deque[bytes] = deque()
        self.floods = threading.Event()
        self.flood = bytes(64 * 1024)
        self.pause = 0.0
        self.said = 0
        super().__init__(("127.0.0.1", 0), _Speaker)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.server_address[1]}"


class _Speaker(socketserver.StreamRequestHandler):
    server: _Redis

    def handle(self) -> None:
        try:
            while line := self.rfile.readline():
                words = []
                for _ in range(int(line[1:])):
                    length = int(self.rfile.readline()[1:])
                    words.append(self.rfile.read(length + 2)[:-2])
                self._answer(words)
        except (OSError, ValueError):
            return

    def _answer(self, words: list[bytes]) -> None:
        if words[0] in (b"CLIENT", b"PING"):
            self.wfile.write(b"+OK\r\n")
        elif not self.server.lies:
            self.wfile.write(b"$%d\r\n%s\r\n" % (len(HONEST), HONEST))
        else:
            self.wfile.write(self.server.lies.popleft())
            while self.server.floods.is_set():
                self.wfile.write(self.server.flood)
                self.server.said += len(self.server.flood)
                if self.server.pause:
                    threading.Event().wait(self.server.pause)


@pytest.fixture(scope="module")
def redis() -> Iterator[_Redis]:
    with _Redis() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.floods.clear()
            server.shutdown()
            thread.join(30)


PART = Part("name", 0, 0, 64)
LIES = {
    "half a value": b"$50\r\nhalf",
    "half a length": b"$50",
    "no value at all": b"",
    "a value of a hundred terabytes": b"$99999999999999\r\n",
    "a value of no length": b"$\r\n",
    "a negative length": b"$-7\r\n",
    "another end": b"$2\r\nab--",
    "a number": b":7\r\n",
    "an array": b"*1\r\n$2\r\nab\r\n",
    "a push": b">1\r\n$2\r\nab\r\n",
    "two answers": b"$2\r\nab\r\n$2\r\ncd\r\n",
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
}


def _read(engine: RemoteEngine, parts: list[Part]) -> list[bytes]:
    """Return what an honest store answers, which a busy machine may be too slow to give in time."""
    for _ in range(50):
        try:
            return [bytes(one or b"") for one in engine.read(parts)]
        except RemoteError as error:
            if error.reason != "timeout":
                raise
    raise AssertionError("fifty reads of an honest store took too long")


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_lie_costs_a_time_out_at_most_and_no_other_read(redis: _Redis, lie: bytes) -> None:
    with engine_at(redis.url, read_seconds=0.3) as engine:
        assert _read(engine, [PART]) == [HONEST]
        redis.lies.append(lie)
        # The client takes some lies for values; of those each page's checks say what they are.
        with suppress(RemoteError):
            (found,) = engine.read([PART])
            assert found in (b"", b"ab")
        for _ in range(3):
            assert _read(engine, [PART, PART]) == [HONEST] * 2


@pytest.mark.parametrize("head", [b"$400000000\r\n", b"", b"-"], ids=["value", "zeros", "error"])
def test_a_flood_is_left_alone_and_takes_no_memory(redis: _Redis, head: bytes) -> None:
    redis.floods.set()
    redis.lies.append(head)
    try:
        with engine_at(redis.url, read_seconds=30.0) as engine:
            engine.ping()
            with traced_memory():
                assert reason_of(engine.read, [PART]).reason == "lost"
                assert tracemalloc.get_traced_memory()[1] < 4 * PART_BYTES
    finally:
        redis.floods.clear()


ENDLESS = {
    "elements": (b"*2000000000\r\n", b"$1\r\nx\r\n"),
    "empty elements": (b"*2000000000\r\n", b"$0\r\n\r\n"),
    "arrays": (b"*2000000000\r\n", b"*0\r\n"),
    "bytes": (b"$2000000000\r\n", b"xxxx"),
}
PLACES = {
    "single": "redis://127.0.0.1:{}",
    "cluster": "redis+cluster://127.0.0.1:{}",
    "sentinel": "redis+sentinel://127.0.0.1:{}/master",
}


@pytest.mark.parametrize(
    ("kind", "place"),
    [*((kind, "single") for kind in ENDLESS), ("elements", "cluster"), ("elements", "sentinel")],
)
def test_an_endless_answer_to_a_look_up_is_no_longer_than_the_question_allows(
    redis: _Redis, kind: str, place: str
) -> None:
    """Of a cluster, and of a Sentinel, the first question is who has the values."""
    head, redis.flood = ENDLESS[kind]
    redis.flood *= 16 * 1024
    redis.said = 0
    redis.floods.set()
    redis.lies.append(head)
    url = PLACES[place].format(redis.server_address[1])
    try:
        with traced_memory():
            with engine_at(url, read_seconds=30.0) as engine:
                error = reason_of(engine.look, [f"name {n}" for n in range(64)], 1024, ["tails"])
                assert error.reason == "lost"
                assert "longer" in str(error)
            # A connection holds some more; four bytes are an object of forty and a place in a list.
            assert redis.said < 16 * MIB
            assert tracemalloc.get_traced_memory()[1] < 128 * MIB
    finally:
        redis.floods.clear()
        redis.flood = bytes(64 * 1024)


def test_an_answer_that_drips_has_one_deadline(redis: _Redis) -> None:
    """Each piece comes long before a read of the socket would time out."""
    redis.flood, redis.pause = b"$1\r\nx\r\n", 0.02
    redis.floods.set()
    redis.lies.append(b"*2000000000\r\n")
    try:
        with engine_at(redis.url, read_seconds=0.5) as engine:
            began = time.monotonic()
            assert reason_of(engine.look, ["name"], 1024, ["tails"]).reason == "timeout"
            assert time.monotonic() - began < 20
    finally:
        redis.floods.clear()
        redis.flood, redis.pause = bytes(64 * 1024), 0.0


def test_nobody_waits_at_a_pipe_that_lies_where_a_value_would(tmp_path: Path) -> None:
    found: list[object] = []
    with engine_at(f"file://{tmp_path}/store") as engine:
        assert engine.write("value", [[HONEST]], replace=True)
        pipe = tmp_path / "store" / "pipe"
        os.mkfifo(pipe)

        def ask() -> None:
            found.append(engine.look(["pipe", "value"], 64))
            found.append(engine.read([Part("pipe", 0, 0, 64)]))

        asking = threading.Thread(target=ask)
        asking.start()
        asking.join(10)
        waits = asking.is_alive()
        if waits:
            # Whoever waits to read is let go on by somebody who could write.
            os.close(os.open(pipe, os.O_WRONLY))
            asking.join(10)
    assert not waits
    assert found == [([None, HONEST], []), [None]]
