"""A session beside its own prefetch: every page is read once, by whichever of them began it."""

from pathlib import Path

import pytest

from kit.plain import PlainChain, is_right
from kit.restoring import PagedDisk
from omlx_cache.arrays.mlxio import allocate_payload

BLOCKS = 40


@pytest.mark.parametrize(
    ("at", "hot_bytes"), [(1, "1MiB"), (7, "1MiB"), (BLOCKS, "1MiB"), (7, "16KiB")]
)
def test_a_restore_joins_the_read_that_a_prefetch_is_in(
    tmp_path: Path, at: int, hot_bytes: str
) -> None:
    chain = PlainChain(BLOCKS)
    with chain.open(tmp_path) as store:
        chain.store(store)
    disk = PagedDisk()
    with chain.open(tmp_path, disk, hot_bytes=hot_bytes, queue_bytes="16KiB") as store:
        first = [True]

        def hold(position: int, group: str) -> bool:
            """Only the first read of the page waits: the prefetch's."""
            if position == at * chain.size and first:
                first.clear()
                return True
            return False

        disk.hold = hold
        handle = store.prefetch([chain.id(n) for n in range(1, BLOCKS + 1)], allocate_payload)
        assert disk.reached.acquire(timeout=30)
        joined = store.prefetcher.being_read

        def being_read(page):  # type: ignore[no-untyped-def]
            coming = joined(page)
            if page == chain.id(at):
                assert coming is not None
                disk.gate.set()
            return coming

        store.prefetcher.being_read = being_read  # type: ignore[method-assign]
        caches, restored = chain.restore(store)
        assert restored.point.position == BLOCKS * chain.size
        assert is_right(caches, BLOCKS * chain.size)
        assert handle.wait(30)
        assert set(disk.payloads.values()) == {1}
        store.hot.check_integrity()
