"""Cold pages come into memory ahead of their use, within the budget, and without harm."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kit.storage import Story, bytes_of, commit, commit_to_disk, is_right, open_store, store_page
from kit.units import KIB
from omlx_cache.arrays.mlxio import allocate_payload
from omlx_cache_storage.page import Page
from omlx_cache_storage.tiers import Tiers


@pytest.fixture
def story(tmp_path: Path) -> Story:
    """Six pages on the disk."""
    story = Story(nbytes=16 * KIB)
    with open_store(tmp_path) as store:
        commit(store, story, 1, 2, 3, 4, 5, 6)
    return story


def test_a_prefetch_takes_free_room_only_and_evicts_nobody(tmp_path: Path, story: Story) -> None:
    other = Story("other", nbytes=16 * KIB)
    with open_store(tmp_path, hot_bytes=64 * KIB, queue_bytes=64 * KIB) as store:
        commit(store, story, 1, 2)
        commit_to_disk(store, other, 1)
        handle = store.prefetch(story.ids(1, 2, 3, 4, 5, 6), allocate_payload)
        assert handle.wait(30)
        assert handle.pages == 1
        held = [store.hot.info(page) is not None for page in story.ids(1, 2, 3, 4, 5, 6)]
        assert held == [True, True, True, False, False, False]
        assert store.hot.info(other.id(1)) is not None
        assert (store.hot.usage().nbytes, store.hot.usage().evicted_pages) == (64 * KIB, 0)


def test_a_page_committed_meanwhile_is_not_replaced_by_its_older_self(
    tmp_path: Path, story: Story
) -> None:
    with open_store(tmp_path) as store:
        small = story.page(9, held=8)
        assert store_page(store, small)
        assert store.flush()
        store.hot.discard([small.meta.id])
        full = story.page(9)

        def allocate(nbytes: int) -> Any:
            assert store_page(store, full)
            return np.empty(nbytes, dtype=np.uint8)

        assert store.prefetch([small.meta.id], allocate).wait(30)
        held = store.hot.get(full.meta.id)
        assert held.meta.held == 16
        assert bytes_of(held) == bytes_of(Page(full.meta, full.payload))
        assert store.flush()
        info = store.cold.info(full.meta.id) if store.cold is not None else None
        assert info.held == 16
        store.hot.check_integrity()


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
