"""Whatever a disk has no room of (bytes, files, a quota), what leaves first makes room for more."""

import errno
import os
from collections import Counter
from pathlib import Path

import pytest

from kit.storage import (
    FaultyDisk,
    Story,
    expected_payload,
    files_in,
    open_cold,
    read_cold,
)
from kit.units import DAY
from omlx_cache_storage.cold.page_writer import NO_ROOM_TRIES
from omlx_cache_storage.cold.tier import ColdTier


class QuotaDisk(FaultyDisk):
    """Refuses operations with `code` while more than `most` page files lie in the directory."""

    def __init__(self, directory: Path, code: int, most: int, *operations: str) -> None:
        super().__init__()
        self._directory, self._code, self._most = directory, code, most
        self._operations = operations
        self.refused: Counter[str] = Counter()

    def _enter(self, name: str, *given: object) -> None:
        super()._enter(name, *given)
        if name in self._operations and len(files_in(self._directory)) > self._most:
            self.refused[name] += 1
            raise OSError(self._code, os.strerror(self._code))


def _write(tier: ColdTier, story: Story, number: int, stamp: int = 0) -> str:
    return tier.write(story.page(number), DAY + (stamp or number), story.document)


def _is_there(tier: ColdTier, story: Story, number: int) -> bool:
    page = story.id(number)
    return page in tier and read_cold(tier, page) == expected_payload(page, story.nbytes)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("operation", ["write", "publish", "make_directory", "sync_directory"])
def test_no_room_evicts_what_leaves_first_and_the_page_is_written_all_the_same(
    tmp_path: Path, operation: str, code: int
) -> None:
    story = Story()
    disk = QuotaDisk(tmp_path, code, 3 if operation != "sync_directory" else 4, operation)
    tier = open_cold(tmp_path, fs=disk, durability="fsync")
    for number in range(1, 20):
        assert _write(tier, story, number) == "written"
        assert tier.usage().state == "ok"
    assert disk.refused[operation] >= 5
    assert _is_there(tier, story, 19)
    assert _is_there(tier, story, 18)
    assert story.id(1) not in tier
    assert files_in(tmp_path, ".tmp-*") == []
    assert tier.usage().pages == len(files_in(tmp_path)) >= 3
    tier.check_integrity()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_never_evicts_what_outranks_the_page_that_wants_in(
    tmp_path: Path, code: int
) -> None:
    """The deep end of a chain does not drive out its root."""
    story = Story()
    disk = QuotaDisk(tmp_path, code, 2, "write")
    tier = open_cold(tmp_path, fs=disk)
    assert [_write(tier, story, n, stamp=7) for n in (1, 2, 3)] == ["written"] * 3
    assert [_write(tier, story, n, stamp=7) for n in (4, 5)] == ["refused"] * 2
    assert all(_is_there(tier, story, number) for number in (1, 2, 3))
    assert (tier.usage().refused_pages, tier.usage().evicted_pages) == (2, 0)
    assert tier.usage().state == "ok"


def test_a_disk_that_eviction_does_not_help_is_not_emptied(tmp_path: Path) -> None:
    story, disk = Story(), FaultyDisk()
    tier = open_cold(tmp_path, fs=disk)
    for number in range(1, 51):
        assert _write(tier, story, number) == "written"
    disk.fail["write"] = errno.EDQUOT
    calls = disk.calls["write"]
    with pytest.raises(OSError, match="quota"):
        _write(tier, story, 51)
    assert disk.calls["write"] - calls == NO_ROOM_TRIES + 1
    first = tier.usage().evicted_pages
    assert 0 < first < 2**NO_ROOM_TRIES * 2
    for _ in range(5):
        with pytest.raises(OSError, match="quota"):
            _write(tier, story, 51)
    assert tier.usage().evicted_pages - first <= 10
    assert tier.usage().state == "failing: Disk quota exceeded"
    disk.fail.clear()
    assert _write(tier, story, 51) == "written"
    assert tier.usage().state == "ok"
    tier.check_integrity()
