"""`write_policy=lazy`: when a page is written, and when it is not."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kit.storage import (
    FaultyDisk,
    HandClock,
    Story,
    commit,
    files_in,
    is_right,
    open_store,
    store_page,
)
from kit.units import KIB
from omlx_cache import BlockStore
from omlx_cache_storage import writer
from omlx_cache_storage.hot_page import WRITE_POLICIES
from omlx_cache_storage.writer import IDLE_SECONDS

IDLE, DELAY = 60.0, 300.0
SMALL = {"hot_bytes": 160 * KIB, "queue_bytes": 160 * KIB, "commit_wait_seconds": 86400}


@pytest.fixture
def store(tmp_path: Path, clock: HandClock) -> Iterator[BlockStore]:
    with open_store(tmp_path, clock=clock, write_policy="lazy") as store:
        yield store


def drained(store: BlockStore) -> None:
    """Let the writer end what is queued, and nothing else."""
    store.writer.tick()
    assert store.writer.flush(30)


def on_disk(store: BlockStore, story: Story) -> list[int]:
    return [number for number in range(1, 20) if store.cold.info(story.id(number)) is not None]


def keep_busy(store: BlockStore, clock: HandClock, seconds: float) -> None:
    """Let time pass in which a page of another conversation is used now and then."""
    other = Story("busy")
    store_page(store, other.page(1))
    while seconds > 0:
        clock.pass_by(min(seconds, IDLE / 2))
        store.touch(other.ids(1))
        seconds -= IDLE / 2


def test_an_idle_store_writes_what_it_has(store: BlockStore, clock: HandClock) -> None:
    story = Story()
    commit(store, story, 1, 2, 3)
    clock.pass_by(IDLE - 1)
    drained(store)
    assert on_disk(store, story) == []
    clock.pass_by(1)
    drained(store)
    assert on_disk(store, story) == [1, 2, 3]


def test_a_page_is_written_after_the_delay_however_busy_the_store_is(
    store: BlockStore, clock: HandClock
) -> None:
    story, later = Story(), Story("later")
    commit(store, story, 1, 2)
    keep_busy(store, clock, DELAY / 2)
    commit(store, later, 1, 2)
    drained(store)
    assert on_disk(store, story) == []
    keep_busy(store, clock, DELAY / 2 - IDLE_SECONDS + 1)
    drained(store)
    assert on_disk(store, story) == [1, 2]
    assert on_disk(store, later) == []
    keep_busy(store, clock, DELAY / 2)
    drained(store)
    assert on_disk(store, later) == [1, 2]


@pytest.mark.parametrize("seconds", [IDLE, DELAY])
def test_the_writer_looks_at_the_clock_by_itself(
    tmp_path: Path, clock: HandClock, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(writer, "IDLE_SECONDS", 0.01)
    late = {"delay_seconds" if seconds == IDLE else "idle_seconds": 80000.0}
    policies = {"lazy": replace(WRITE_POLICIES["lazy"], **late)}
    monkeypatch.setattr("omlx_cache.store.WRITE_POLICIES", policies)
    disk = FaultyDisk()
    with open_store(tmp_path, disk, clock, write_policy="lazy") as store:
        # The directory's budget is written when it is opened.
        disk.reached.clear()
        commit(store, Story(), 1)
        assert not disk.reached.is_set()
        clock.pass_by(seconds)
        assert disk.reached.wait(30)


def test_memory_that_runs_short_writes_before_it_evicts(tmp_path: Path, clock: HandClock) -> None:
    story = Story(nbytes=16 * KIB)
    with open_store(tmp_path, clock=clock, write_policy="lazy", **SMALL) as store:
        for number in range(1, 10):
            assert store_page(store, story.page(number))
        drained(store)
        assert on_disk(store, story) == []
        for number in range(10, 41):
            assert store_page(store, story.page(number))
        assert all(is_right(store, story.id(n), 16 * KIB) for n in range(1, 41))
        assert store.writer.usage().written_pages < 40


def test_a_superseded_page_leaves_memory_unwritten(tmp_path: Path, clock: HandClock) -> None:
    story = Story(nbytes=16 * KIB)
    with open_store(tmp_path, clock=clock, write_policy="lazy", **SMALL) as store:
        for number in range(1, 41):
            assert store_page(store, story.page(number, tail=3))
            store.demote([story.id(number, tail=3)])
        clock.pass_by(DELAY)
        drained(store)
        assert files_in(tmp_path) == []
        assert store.hot.usage().evicted_pages == 30
        # One that is asked for after all is worth its file again.
        store.touch([story.id(40, tail=3)])
        clock.pass_by(IDLE)
        drained(store)
        assert len(files_in(tmp_path)) == 1


@pytest.mark.parametrize("why", ["eviction", "idle", "pressure"])
def test_of_a_chain_the_root_is_written_first(tmp_path: Path, clock: HandClock, why: str) -> None:
    story, disk, published = Story(nbytes=16 * KIB), FaultyDisk(), list[str]()
    disk.each["publish"] = lambda _, final: published.append(os.path.basename(final)[:64])
    with open_store(tmp_path, disk, clock, write_policy="lazy", **SMALL) as store:
        commit(store, story, *range(1, 9))
        if why == "idle":
            clock.pass_by(IDLE)
        elif why == "pressure":
            store.restrict_hot(100 * KIB)
        else:
            commit(store, Story("other", nbytes=16 * KIB), *range(1, 6))
        drained(store)
    mine = [story.id(number).key.hex() for number in range(1, 9)]
    order = [mine.index(key) for key in published if key in mine]
    assert order[0] == 0
    assert order == sorted(order)
