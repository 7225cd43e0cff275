"""Requests of a machine whose shared store fails: none fails, none is wrong, and what this machine
has itself is restored as if there were no other."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.drive import random_tokens
from kit.remote.machines import BLOCK, Machine, on_another_machine
from kit.remote.redis_servers import RedisServer
from omlx_cache import PrefixCache
from omlx_cache_storage.remote import uploads

TOKENS = 321
pytestmark = pytest.mark.usefixtures("forks")
GENEROUS = 60.0
"""Many times what a deadline of these tests allows, on a machine with too much to do."""
HURRIED = {"remote_lookup_seconds": 0.5}
FAULTS: dict[str, Callable[[RedisServer], object]] = {
    "killed": lambda server: server.process.kill(),
    "hanging": lambda server: server.process.suspend(),
    "emptied": lambda server: server.ask("FLUSHALL"),
    "closed to us": lambda server: server.ask("CONFIG", "SET", "requirepass", "another"),
}


@pytest.fixture(autouse=True)
def _closing_waits_for_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a store waits for a server at its end is looked at elsewhere."""
    monkeypatch.setattr(uploads, "CLOSE_SECONDS", 0.2)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_store_that_fails_takes_nothing_from_what_the_machine_has_itself(
    fault: str, server: RedisServer, tmp_path: Path
) -> None:
    machine = Machine("llama", tmp_path / "b", server.url, **HURRIED)
    with machine.store() as store:
        machine.ask(store, TOKENS)
        assert store.flush(30)
    with machine.store() as store:
        FAULTS[fault](server)
        began = time.monotonic()
        turn = machine.ask(store, TOKENS)
        new = machine.ask(store, TOKENS, seed=2)
        assert time.monotonic() - began < GENEROUS
        assert store.stats().requests.restored_cold_tokens == turn.cached == TOKENS - 1
    assert new.cached == 0
    assert machine.is_right(turn, TOKENS)
    assert machine.is_right(new, TOKENS, seed=2)


@pytest.mark.parametrize("fault", ["killed", "hanging", "emptied"])
def test_a_store_that_fails_between_the_look_up_and_the_reads_costs_a_miss(
    fault: str, server: RedisServer, tmp_path: Path
) -> None:
    on_another_machine(server.url, tmp_path / "a", "llama", TOKENS)
    machine = Machine("llama", tmp_path / "b", server.url, **HURRIED)
    with machine.store() as store:
        found = PrefixCache(machine.model, store).lookup(random_tokens(TOKENS, 1))
        assert found.cached_tokens == TOKENS - 1
        FAULTS[fault](server)
        began = time.monotonic()
        turn = machine.ask(store, TOKENS)
        assert time.monotonic() - began < GENEROUS
    assert turn.cached == 0
    assert turn.reason is not None
    assert machine.is_right(turn, TOKENS)


@pytest.mark.parametrize("begun", [False, True], ids=["at once", "begun before"])
def test_a_deadline_leaves_time_for_the_own_disk_when_nobody_answers(
    begun: bool, server: RedisServer, tmp_path: Path
) -> None:
    machine = Machine("llama", tmp_path / "b", server.url, remote_lookup_seconds=GENEROUS)
    with machine.store(remote="off") as store:
        machine.ask(store, TOKENS)
        assert store.flush(30)
    with machine.store() as store:
        server.process.suspend()
        tokens = [*random_tokens(TOKENS, 1), *random_tokens(BLOCK, 2)]
        cache = PrefixCache(machine.model, store)
        handle = cache.begin(tokens) if begun else None
        with cache.session(tokens, deadline=6, begun=handle) as session:
            assert session.cached_tokens >= TOKENS // BLOCK * BLOCK
