"""`cache.begin`: a prefix comes from the disk while others compute, and a session takes it over."""

import gc
import time
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from kit.drive import random_tokens
from kit.examples import some
from kit.restoring import BLOCK, DENSE, HYBRID, TOKENS, WINDOWED, Conversation, PagedDisk
from omlx_cache import PrefixCache

MORE = random_tokens(20, 9)


@pytest.fixture(params=some([DENSE, WINDOWED, HYBRID], HYBRID))
def talk(request: pytest.FixtureRequest, tmp_path: Path) -> Conversation:
    return Conversation(request.param, tmp_path)


@pytest.fixture
def disk() -> Iterator[PagedDisk]:
    disk = PagedDisk()
    yield disk
    disk.gate.set()


def test_a_hanging_disk_costs_a_session_no_more_than_its_deadline(
    talk: Conversation, disk: PagedDisk
) -> None:
    """What came is restored, the rest is computed, bit for bit; the disk never answers."""
    with talk.open(disk, hot_bytes=0) as store:
        disk.hold = lambda position, group: position > 3 * BLOCK and group == "paged"
        cache = PrefixCache(talk.model, store)
        begun = cache.begin(talk.tokens + MORE)
        assert disk.reached.acquire(timeout=30)
        with cache.session(talk.tokens + MORE, begun=begun, deadline=0.2) as session:
            assert session.cached_tokens < TOKENS
            assert session.miss_reason is not None
            assert talk.goes_on(session)
        assert store.stats().requests.misses.get("deadline") == 1
        disk.gate.set()


def test_a_plain_session_has_a_deadline_too(
    talk: Conversation, disk: PagedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though beside other machines peer processes are asked twice, and slow, what they changed."""
    with talk.open(disk, hot_bytes=0) as store:
        disk.hold = lambda position, group: True
        monkeypatch.setattr(type(store), "asks", True)
        waits: list[float] = []

        def wait(timeout: float) -> None:
            waits.append(timeout)
            time.sleep(timeout)

        monkeypatch.setattr(store, "refresh", wait)
        cache = PrefixCache(talk.model, store)
        with cache.session(talk.tokens + MORE, deadline=1.0) as session:
            assert sum(waits) <= 1.0
            assert (session.cached_tokens, session.miss_reason) == (0, "deadline")
        disk.gate.set()


def test_what_was_begun_for_another_prompt_or_tenant_is_not_used(talk: Conversation) -> None:
    with talk.open() as store:
        cache = PrefixCache(talk.model, store)
        for tokens, salt in ((talk.tokens, None), (talk.tokens + MORE, "someone")):
            begun = cache.begin(talk.tokens + MORE)
            with cache.session(tokens, salt=salt, begun=begun) as session:
                assert session.tokens == tokens
                assert session.cached_tokens == (0 if salt else TOKENS - 1)
            assert store.restores.nbytes == 0


def test_a_begun_restore_that_nobody_takes_gives_its_memory_back(
    talk: Conversation, disk: PagedDisk
) -> None:
    with talk.open(disk, hot_bytes=0) as store:
        cache = PrefixCache(talk.model, store)
        before = mx.get_active_memory()
        for end in ("cancelled", "lost"):
            begun = cache.begin(talk.tokens + MORE)
            assert begun.wait(30)
            assert store.restores.nbytes > 0
            if end == "cancelled":
                begun.cancel()
                begun.cancel()
            del begun
            gc.collect()
            assert store.restores.nbytes == 0
        assert mx.get_active_memory() - before < 64 * 1024
