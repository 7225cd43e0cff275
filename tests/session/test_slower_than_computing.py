"""What a slow disk has is computed instead, unless that is switched off."""

import threading
from pathlib import Path

import pytest

from kit.drive import random_tokens
from kit.examples import some
from kit.restoring import DENSE, HYBRID, TOKENS, WINDOWED, Conversation, PagedDisk
from omlx_cache import BlockStore, PrefixCache
from omlx_cache.requests.explanation import brief
from omlx_cache.restore.lookup import READS
from omlx_cache.session import Session

MORE = random_tokens(20, 9)
SLOW = 0.25
"""Seconds for a page: far more than these small models take for all of the prompt."""


@pytest.fixture(params=some([DENSE, WINDOWED, HYBRID], HYBRID))
def talk(request: pytest.FixtureRequest, tmp_path: Path) -> Conversation:
    return Conversation(request.param, tmp_path)


@pytest.fixture
def disk() -> PagedDisk:
    return PagedDisk()


def learn(talk: Conversation, store: BlockStore, disk: PagedDisk) -> PrefixCache:
    """Return a cache whose store knows what the model takes, and that the disk is slow."""
    cache = PrefixCache(talk.model, store)
    # A loop of its own: these restore points are too close for a chunk that tells a rate.
    with cache.session(random_tokens(TOKENS, 100)) as session:
        session.asked.computed(TOKENS, 0.01)
    assert store.flush(60)
    disk.hold = lambda position, group: threading.Event().wait(SLOW)
    for _ in range(READS):
        store.shrink_hot(0)
        with restored(talk, cache) as session:
            assert session.cached_tokens >= TOKENS - 1
    store.shrink_hot(0)
    return cache


def restored(talk: Conversation, cache: PrefixCache) -> Session:
    return cache.session(talk.tokens + MORE)


def test_what_takes_longer_to_read_is_computed_counted_and_said(
    talk: Conversation, disk: PagedDisk
) -> None:
    with talk.open(disk) as store:
        cache = learn(talk, store, disk)
        reads = sum(disk.payloads.values())
        with restored(talk, cache) as session:
            assert session.cached_tokens == 0
            assert talk.goes_on(session)
            told = session.explanation
        assert sum(disk.payloads.values()) == reads
        word, _, estimates = session.miss_reason.partition(":")
        assert word == "slower_than_computing"
        assert estimates.startswith(f"{TOKENS} tokens, about ")
        assert store.stats().requests.misses == {"slower_than_computing": 1}
        assert "to read that takes longer than to compute it" in str(told)
        assert estimates in str(told)
        assert brief(told) == f" (slower_than_computing: {estimates})"
        assert estimates in store.why().requests[0].words


def test_switched_off_the_disk_is_read(talk: Conversation, disk: PagedDisk) -> None:
    with talk.open(disk, worth_reading="off") as store:
        cache = learn(talk, store, disk)
        with restored(talk, cache) as session:
            assert session.cached_tokens >= TOKENS - 1
