"""Answers that are values come whole however the network cuts them, and nothing else is taken for
one."""

import contextlib
import itertools
import socket
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("redis", reason="needs the client: pip install 'omlx-cache[remote]'")

from redis.connection import Connection
from redis.exceptions import ConnectionError as Gone
from redis.exceptions import InvalidResponse, MovedError, ResponseError

from omlx_cache_storage.remote.redis_values import receive
from omlx_cache_storage.remote.slabs import NEW_MEMORY, Sink, new_memory

LARGE = bytes(range(256)) * 400
"""Longer than what is read ahead of a value."""
VALUES = [None, b"", b"x", b"\r\n", b"$-1\r\n", LARGE, LARGE[:16_384], LARGE[:16_385]]


class _Connection:
    """What is asked of the client's connection: its socket, and what it makes of errors."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._parser = Connection()._parser


def _wire(value: bytes | None) -> bytes:
    return b"$-1\r\n" if value is None else b"$%d\r\n%s\r\n" % (len(value), value)


def _came(stream: bytes, count: int, cuts: Sequence[int] = (), most: int = 1 << 20) -> list[Any]:
    """Return the answers in a stream that comes in pieces; then the connection ends."""
    near, far = socket.socketpair()

    def send() -> None:
        with far:
            ends = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
            with contextlib.suppress(OSError):
                for start, stop in itertools.pairwise(ends):
                    far.sendall(stream[start:stop])

    sender = threading.Thread(target=send)
    sender.start()
    try:
        with near:
            near.settimeout(30)
            return receive(_Connection(near), count, NEW_MEMORY, most)
    finally:
        sender.join(30)
        assert not sender.is_alive()


@settings(max_examples=60)
@given(st.lists(st.sampled_from(VALUES), min_size=1, max_size=6), st.lists(st.integers(0, 1 << 20)))
def test_values_come_whole_and_in_order(values: list[bytes | None], cuts: list[int]) -> None:
    found = _came(b"".join(map(_wire, values)), len(values), cuts)
    assert [None if one is None else bytes(one) for one in found] == values


def test_a_value_lies_in_the_memory_that_was_given_for_it() -> None:
    near, far = socket.socketpair()
    given_memory: list[memoryview] = []

    def room(nbytes: int) -> memoryview:
        given_memory.append(new_memory(nbytes))
        return given_memory[-1]

    with near, far:
        far.sendall(_wire(LARGE) + _wire(b"small"))
        first, second = receive(_Connection(near), 2, Sink(room), 1 << 20)
    assert first is given_memory[0]
    assert second is given_memory[1]
    assert (bytes(first), bytes(second)) == (LARGE, b"small")


def test_an_error_stands_where_its_answer_would() -> None:
    stream = _wire(b"a") + b"-MOVED 7 127.0.0.1:7001\r\n" + b"-ERR no\r\n+OK\r\n" + _wire(LARGE)
    first, moved, error, word, last = _came(stream, 5)
    assert (bytes(first), bytes(word), bytes(last)) == (b"a", b"OK", LARGE)
    assert isinstance(moved, MovedError)
    assert isinstance(error, ResponseError)


@pytest.mark.parametrize("most", [0, 1, 16_384, len(LARGE) - 1])
def test_a_value_that_is_longer_than_was_asked_for_is_no_answer(most: int) -> None:
    with pytest.raises(InvalidResponse, match="longer"):
        _came(_wire(LARGE) + _wire(b"x"[:most]), 2, most=most)


@pytest.mark.parametrize(
    "stream",
    [
        b":7\r\n",
        b"*1\r\n$1\r\na\r\n",
        b"$x\r\n",
        b"$-2\r\n",
        b"$" + b"9" * 30 + b"\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"$1\r\nabc\r\n",
        b"x" * 10_000,
        b"$1\r\na\r\n$1\r\nb\r\n",
        b"\r\n",
    ],
)
def test_another_answer_is_none(stream: bytes) -> None:
    with pytest.raises(InvalidResponse):
        _came(stream, 1)


@pytest.mark.parametrize("length", [0, 1, 5, 9, 20_000, len(_wire(LARGE)) - 1])
def test_a_connection_that_ends_in_an_answer_is_gone(length: int) -> None:
    with pytest.raises(Gone):
        _came(_wire(LARGE)[:length], 1)


def test_a_connection_that_another_thread_closed_is_gone() -> None:
    with pytest.raises(Gone):
        receive(_Connection(None), 1, NEW_MEMORY, 1 << 20)


def test_who_brings_nothing_is_waited_for_as_long_as_the_socket_says() -> None:
    near, far = socket.socketpair()
    with near, far:
        near.settimeout(0.01)
        far.sendall(_wire(LARGE)[:50_000])
        with pytest.raises(TimeoutError):
            receive(_Connection(near), 1, NEW_MEMORY, 1 << 20)
