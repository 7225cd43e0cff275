"""A restore of cold pages reads each once and takes only memory that nobody uses."""

from pathlib import Path

import pytest

from kit.plain import PlainChain, is_right
from kit.restoring import PagedDisk

BLOCKS = 40


@pytest.fixture
def chain(tmp_path: Path) -> PlainChain:
    chain = PlainChain(BLOCKS, size=64)
    with chain.open(tmp_path) as store:
        chain.store(store)
    return chain


def test_cold_pages_come_into_free_memory_without_a_second_read(
    tmp_path: Path, chain: PlainChain
) -> None:
    disk = PagedDisk()
    with chain.open(tmp_path, disk) as store:
        for _ in range(2):
            caches, restored = chain.restore(store)
            assert is_right(caches, BLOCKS * chain.size)
        assert restored.cold_tokens == 0
        assert sum(disk.payloads.values()) == BLOCKS
        assert store.hot.usage().pages == BLOCKS
        store.hot.check_integrity()


def test_nobody_is_flushed_out_and_the_ceiling_holds(tmp_path: Path, chain: PlainChain) -> None:
    page = chain.page(1).meta.nbytes
    disk = PagedDisk()
    with chain.open(tmp_path, disk, hot_bytes=10 * page, queue_bytes=10 * page) as store:
        kept = [chain.page(n) for n in (1, 2, 3)]
        for mine in kept:
            room = store.reserve(mine.meta.nbytes)
            assert room
            store.put(mine, room)
        caches, restored = chain.restore(store)
        assert restored.point.position == BLOCKS * chain.size
        assert is_right(caches, BLOCKS * chain.size)
        assert sum(disk.payloads.values()) == BLOCKS - 3
        usage = store.hot.usage()
        assert (usage.nbytes, usage.evicted_pages) == (10 * page, 0)
        assert usage.peak_bytes <= 10 * page
        assert all(store.held(mine.meta.id) is mine for mine in kept)
        store.hot.check_integrity()
