"""Deadlines are deadlines: beside a process that holds the directory's lock and was stopped, each
call returns in the time that it was allowed, requests are served, and all goes on when the other
process ends."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from contract.arithmetic import Arithmetic, tokens_of
from contract.driving import BLOCK, SLACK, Child, ask
from omlx_cache import BlockStore, PrefixCache

Open = Callable[..., BlockStore]
TOKENS = tokens_of(1, 3 * BLOCK + 5)
HOLD = """
import fcntl, json, sys
file = open(sys.argv[1], "r+b")
fcntl.flock(file, fcntl.LOCK_EX)
print(json.dumps("held"), flush=True)
sys.stdin.read()
"""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began <= seconds + SLACK


@pytest.fixture
def hold(directory: Path, child: Callable[..., Child]) -> Callable[[], Child]:
    """Have a stopped process hold the directory's lock."""

    def start() -> Child:
        holder = child("-c", HOLD, str(directory / "ledger"))
        assert holder.hear() == "held"
        holder.send(signal.SIGSTOP)
        return holder

    return start


def test_flush_ends_in_time_beside_a_stopped_holder(
    open_store: Open, hold: Callable[[], Child]
) -> None:
    model, store = Arithmetic(), open_store()
    cache = PrefixCache(model, store)
    ask(model, cache, TOKENS)
    assert store.flush(30)
    holder = hold()
    with within(0.5):
        turn = ask(model, cache, TOKENS)
    assert (turn.cached, turn.wrong) == (len(TOKENS) - 1, "")
    with within(1):
        ask(model, cache, tokens_of(2, 90))
    with within(0.5):
        assert not store.flush(0.5)
    with within(0):
        store.stats()
    holder.kill()
    assert store.flush(30)
    assert store.close()


def test_close_and_the_end_of_a_process_end_in_time_beside_a_stopped_holder(
    directory: Path, hold: Callable[[], Child], child: Callable[..., Child]
) -> None:
    given = {"cold_dir": str(directory), "socket": "off", "block_size": BLOCK, "min_free_bytes": 0}
    other = child("-m", "contract.worker", json.dumps(given))
    assert other.hear() == {"ready": True}
    assert other.ask({"do": "ask", "seed": 1, "count": 100})["flushed"]
    hold()
    assert other.ask({"do": "ask", "seed": 2, "count": 100, "flush": False})["wrong"] == ""
    with within(0.5):
        assert not other.ask({"do": "close", "timeout": 0.5})["closed"]
    with within(0):
        assert other.end() == 0


def test_sessions_end_in_time_beside_a_stopped_holder(
    open_store: Open, hold: Callable[[], Child]
) -> None:
    model, store = Arithmetic(), open_store()
    cache = PrefixCache(model, store)
    ask(model, cache, TOKENS)
    assert store.flush(30)
    holder = hold()
    for tokens in (TOKENS, tokens_of(3, 90)):
        with within(0.2):
            turn = ask(model, cache, tokens, deadline=0.2)
        assert turn.wrong == ""
        with within(0):
            cache.lookup(tokens)
        with within(0):
            begun = cache.begin(tokens)
        with within(0.2):
            begun.wait(0.2)
        begun.cancel()
        with within(0.2):
            cache.prefetch(tokens).wait(0.2)
        with within(0):
            cache.pin(tokens, ttl=5).unpin()
    holder.kill()
    assert store.flush(30)
    assert store.close()
    again = ask(model, PrefixCache(model, open_store()), tokens_of(3, 90))
    assert (again.cached, again.wrong) == (89, "")


def test_a_start_beside_a_stopped_holder_is_served_later(
    open_store: Open, hold: Callable[[], Child]
) -> None:
    model, store = Arithmetic(), open_store()
    ask(model, PrefixCache(model, store), TOKENS)
    assert store.close()
    holder = hold()
    with within(10):
        store = open_store(hot_bytes="1MiB")
    cache = PrefixCache(model, store)
    with within(1):
        turn = ask(model, cache, TOKENS, deadline=1)
    assert turn.wrong == ""
    holder.kill()
    assert store.flush(30)
    assert ask(model, cache, TOKENS).wrong == ""
    assert ask(model, cache, TOKENS).cached == len(TOKENS) - 1


def test_a_flush_of_nothing_is_true_at_once(open_store: Open) -> None:
    store = open_store()
    with within(0):
        assert store.flush(1)
