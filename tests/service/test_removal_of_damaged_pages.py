"""Whoever deletes damaged pages deletes none that was written anew meanwhile."""

import os
import shutil
from pathlib import Path

from kit.storage import Story, files_in
from omlx_cache_daemon.checking import remove_damaged
from omlx_cache_storage.cold.catalog import scan
from omlx_cache_storage.cold.disk import FileSystem, StrPath
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.format.names import LEDGER_FILE, StoredPage


class _Healing(FileSystem):
    """A store writes the page anew after it was read, before the directory is had."""

    def __init__(self, whole: Path, page: Path) -> None:
        self._whole, self._page = whole, page

    def exists(self, path: StrPath) -> bool:
        if os.path.basename(path) == LEDGER_FILE and self._whole.exists():
            os.rename(self._whole, self._page)
        return super().exists(path)


def _damaged(directory: Path) -> tuple[Path, Path, StoredPage]:
    tier, story = ColdTier(directory / "cold", 1 << 24), Story()
    tier.open()
    for page in story.pages(1):
        assert tier.write(page, 1, story.document) == "written"
    tier.close()
    (path,) = files_in(directory / "cold")
    whole = directory / "whole"
    shutil.copy(path, whole)
    path.write_bytes(path.read_bytes()[:-1])
    (entry,) = scan(directory / "cold")
    return path, whole, entry.stored


def test_a_damaged_page_goes_and_one_that_is_gone_is_no_trouble(tmp_path: Path) -> None:
    path, _, page = _damaged(tmp_path)
    assert remove_damaged(tmp_path / "cold", [page]) == 1
    assert not path.exists()
    assert remove_damaged(tmp_path / "cold", [page]) == 0


def test_a_page_that_is_whole_by_now_stays(tmp_path: Path) -> None:
    path, whole, page = _damaged(tmp_path)
    os.rename(whole, path)
    assert remove_damaged(tmp_path / "cold", [page]) == 0
    assert path.exists()


def test_a_page_that_is_written_anew_after_it_was_read_stays(tmp_path: Path) -> None:
    path, whole, page = _damaged(tmp_path)
    fs = _Healing(whole, path)
    assert remove_damaged(tmp_path / "cold", [page], fs) == 0
    assert path.exists()
    assert not whole.exists()
