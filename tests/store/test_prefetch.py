"""Cold pages come into memory ahead of their use, within the budget, and without harm."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from kit.storage import Story, bytes_of, commit, files_in, is_right, open_store
from omlx_cache.arrays.mlxio import allocate_payload
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.page import Buffer, Page
from omlx_cache_storage.tiers import Tiers

KIB = 1024


class HangingDisk(FileSystem):
    """A disk whose payload reads wait for `gate`, and say in `reached` that they do."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.reached = threading.Event()

    def read_into(self, fd: int, offset: int, buffers: Sequence[Buffer]) -> int:
        self.reached.set()
        self.gate.wait(60)
        return super().read_into(fd, offset, buffers)


@pytest.fixture
def story(tmp_path: Path) -> Story:
    """Six pages on the disk."""
    story = Story(nbytes=16 * KIB)
    with open_store(tmp_path) as store:
        commit(store, story, 1, 2, 3, 4, 5, 6)
    return story


def test_prefetched_pages_are_live_arrays_in_memory(tmp_path: Path, story: Story) -> None:
    with open_store(tmp_path) as store:
        handle = store.prefetch(story.ids(1, 2, 3), allocate_payload)
        assert handle.wait(30)
        assert handle.pages == 3
        for page in story.ids(1, 2, 3):
            held = store.hot.get(page)
            assert held is not None
            assert isinstance(held.payload, mx.array)
            assert is_right(store, page, 16 * KIB)
        assert store.hot.dirty() == []
        store.hot.check_integrity()


def test_a_prefetch_takes_free_room_only_and_evicts_nobody(tmp_path: Path, story: Story) -> None:
    other = Story("other", nbytes=16 * KIB)
    with open_store(tmp_path, hot_bytes=64 * KIB, queue_bytes=64 * KIB) as store:
        commit(store, story, 1, 2)
        commit(store, other, 1)
        assert store.flush()
        handle = store.prefetch(story.ids(1, 2, 3, 4, 5, 6), allocate_payload)
        assert handle.wait(30)
        assert handle.pages == 1
        held = [store.hot.info(page) is not None for page in story.ids(1, 2, 3, 4, 5, 6)]
        assert held == [True, True, True, False, False, False]
        assert store.hot.info(other.id(1)) is not None
        assert (store.hot.usage().nbytes, store.hot.usage().evicted_pages) == (64 * KIB, 0)


def test_a_restore_takes_its_pages_out_of_a_prefetchs_hands(tmp_path: Path, story: Story) -> None:
    disk = HangingDisk()
    with open_store(tmp_path, disk) as store:
        handle = store.prefetch(story.ids(1, 2, 3, 4), allocate_payload)
        assert disk.reached.wait(30)
        coming = store.prefetcher.being_read(story.id(1))
        assert coming is not None
        assert store.prefetcher.being_read(story.id(2)) is None
        store.prefetcher.withdraw(story.ids(1, 2, 3))
        disk.gate.set()
        page = coming.result(30)
        assert page is not None
        assert page is store.held(story.id(1))
        assert handle.wait(30)
        assert handle.pages == 2
        assert [store.held(p) is not None for p in story.ids(1, 2, 3, 4)] == [
            True, False, False, True,
        ]  # fmt: skip
        assert store.prefetcher.being_read(story.id(1)) is None


def test_a_cancelled_prefetch_ends_and_keeps_what_it_read(tmp_path: Path, story: Story) -> None:
    with open_store(tmp_path) as store:
        made: list[Any] = []

        def allocate(nbytes: int) -> Any:
            made.append(nbytes)
            if len(made) == 2:
                handle.cancel()
            return np.empty(nbytes, dtype=np.uint8)

        with store.hot._lock:
            # The reader stops at the first look into memory until the handle is bound.
            handle = store.prefetch(story.ids(1, 2, 3, 4), allocate)
        assert handle.wait(30)
        assert (len(made), handle.pages) == (2, 2)
        store.hot.check_integrity()


def test_a_damaged_page_ends_the_prefetch_and_gives_its_memory_back(
    tmp_path: Path, story: Story
) -> None:
    path = next(p for p in files_in(tmp_path) if p.name.startswith(story.id(2).key.hex()))
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with open_store(tmp_path) as store:
        handle = store.prefetch(story.ids(1, 2, 3), allocate_payload)
        assert handle.wait(30)
        assert handle.pages == 1
        assert store.hot.usage().nbytes == 16 * KIB
        assert store.find(story.id(2)) is None
        store.hot.check_integrity()


def test_a_page_committed_meanwhile_is_not_replaced_by_its_older_self(
    tmp_path: Path, story: Story
) -> None:
    with open_store(tmp_path) as store:
        small = story.page(9, held=8)
        room = store.admit(small.meta.nbytes, ())
        assert room
        assert store.put(small, room)
        assert store.flush()
        store.hot.discard([small.meta.id])
        full = story.page(9)

        def allocate(nbytes: int) -> Any:
            room = store.admit(full.meta.nbytes, ())
            assert room
            assert store.put(full, room)
            return np.empty(nbytes, dtype=np.uint8)

        assert store.prefetch([small.meta.id], allocate).wait(30)
        held = store.hot.get(full.meta.id)
        assert held is not None
        assert held.meta.held == 16
        assert bytes_of(held) == bytes_of(Page(full.meta, full.payload))
        assert store.flush()
        info = store.cold.info(full.meta.id) if store.cold is not None else None
        assert info is not None
        assert info.held == 16
        store.hot.check_integrity()


def test_nothing_to_read_and_closed_stores_are_done_at_once(tmp_path: Path, story: Story) -> None:
    store = open_store(tmp_path)
    assert store.prefetch([], allocate_payload).wait(0)
    store.close()
    handle = store.prefetch(story.ids(1), allocate_payload)
    assert handle.wait(0)
    assert handle.pages == 0
    with open_store(tmp_path, hot_cache_only=True) as memory:
        assert memory.prefetch(story.ids(1), allocate_payload).wait(0)


@pytest.mark.parametrize("fault", ["reading", "put"])
def test_a_prefetch_that_meets_a_fault_of_this_program_ends_all_the_same(
    fault: str, tmp_path: Path, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> bool:
        raise ZeroDivisionError("a fault of this test")

    with open_store(tmp_path) as store:
        monkeypatch.setattr(Tiers, fault, broken)
        handle = store.prefetch(story.ids(1, 2), allocate_payload)
        assert handle.wait(30)
        assert handle.pages == 0
        assert store.prefetcher.being_read(story.id(1)) is None
        monkeypatch.undo()
        assert store.prefetch(story.ids(2), allocate_payload).wait(30)
        assert is_right(store, story.id(2), 16 * KIB)
