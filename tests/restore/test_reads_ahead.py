"""A disk works while a restore's memory is made: each file is asked for before it is read."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from kit.plain import PlainChain, is_right
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.page import Buffer

BLOCKS = 4
LARGE = 4096
"""Tokens of a page of half a mebibyte."""


class AskedDisk(FileSystem):
    """Notes what payloads were asked for and read, by descriptor, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def read_ahead(self, fd: int, offset: int, length: int) -> None:
        self.calls.append(("asked", fd))
        super().read_ahead(fd, offset, length)

    def read_into(self, fd: int, offset: int, buffers: Sequence[Buffer]) -> int:
        self.calls.append(("read", fd))
        return super().read_into(fd, offset, buffers)


@pytest.mark.parametrize("hot_bytes", ["0", "256MiB"])
def test_every_large_page_is_asked_for_before_it_is_read(tmp_path: Path, hot_bytes: str) -> None:
    chain = PlainChain(BLOCKS, LARGE)
    with chain.open(tmp_path) as store:
        chain.store(store)
    disk = AskedDisk()
    with chain.open(tmp_path, disk, hot_bytes=hot_bytes) as store:
        caches, restored = chain.restore(store)
        assert restored.point.position == BLOCKS * LARGE
        assert is_right(caches, restored.point.position)
    for fd in {fd for _, fd in disk.calls}:
        mine = [call for call, of in disk.calls if of == fd]
        assert mine == ["asked", "read"] * mine.count("asked")
    assert [call for call, _ in disk.calls].count("asked") == BLOCKS


def test_small_pages_are_only_read(tmp_path: Path) -> None:
    chain, disk = PlainChain(BLOCKS), AskedDisk()
    with chain.open(tmp_path) as store:
        chain.store(store)
    with chain.open(tmp_path, disk, hot_bytes="0") as store:
        chain.restore(store)
    assert [call for call, _ in disk.calls] == ["read"] * BLOCKS
