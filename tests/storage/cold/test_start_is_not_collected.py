"""Start-up on many files, and Python's garbage collector."""

import errno
import gc
from pathlib import Path

import pytest

from benchmarks.growth_pages import Directory
from kit.storage import FaultyDisk
from omlx_cache_storage.cold.tier import ColdTier


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("code", [0, errno.EACCES], ids=["read", "refused"])
def test_the_collector_rests_while_an_index_is_made_and_is_as_it_was_then(
    tmp_path: Path, enabled: bool, code: int
) -> None:
    Directory(tmp_path / "cold").grow(64)
    disk, rests = FaultyDisk(), list[bool]()
    disk.fail = {"scan": code} if code else {}
    disk.each["scan"] = lambda _: rests.append(not gc.isenabled())
    try:
        if not enabled:
            gc.disable()
        ColdTier(tmp_path / "cold", 1 << 40, fs=disk).open()
        assert gc.isenabled() == enabled
    finally:
        gc.enable()
    assert all(rests)
    assert bool(rests) == (code == 0)
