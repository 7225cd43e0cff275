"""Start-up on many files, and Python's garbage collector."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.growth_pages import Directory
from omlx_cache_storage.cold.disk import FileSystem, StrPath
from omlx_cache_storage.cold.tier import ColdTier

FILES = 2048


class Counting(FileSystem):
    """The real file system, which says whether the collector was on when a directory was read."""

    def __init__(self) -> None:
        self.enabled: list[bool] = []

    def scan(self, path: StrPath) -> Iterator[Any]:
        self.enabled.append(gc.isenabled())
        return super().scan(path)


class Refusing(FileSystem):
    """A disk whose directories cannot be read."""

    def scan(self, path: StrPath) -> Iterator[Any]:
        raise PermissionError("no")


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """The generations of the collections that happen meanwhile."""
    seen: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            seen.append(info["generation"])

    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)


def test_the_collector_rests_while_an_index_is_made_and_works_afterwards(
    tmp_path: Path, collections: list[int]
) -> None:
    Directory(tmp_path / "cold").grow(FILES)
    disk = Counting()
    tier = ColdTier(tmp_path / "cold", 1 << 40, fs=disk)
    gc.collect()
    collections.clear()
    tier.open()
    assert tier.usage().pages == FILES
    assert disk.enabled
    assert not any(disk.enabled)
    assert len(collections) <= 1, "one, for all that was put off"
    assert gc.isenabled()


def test_a_disk_that_refuses_leaves_the_collector_on(tmp_path: Path) -> None:
    ColdTier(tmp_path / "cold", 1 << 40, fs=Refusing()).open()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off(tmp_path: Path) -> None:
    gc.disable()
    try:
        ColdTier(tmp_path / "cold", 1 << 40).open()
        assert not gc.isenabled()
    finally:
        gc.enable()
