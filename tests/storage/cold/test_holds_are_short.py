"""Nobody has the directory for itself for long: files are deleted a few at a time, in turns."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.children import kill_9, program, said
from kit.storage import Story, disk_usage, files_in, open_cold, set_budget
from kit.units import DAY, KIB, MIB
from omlx_cache_storage.cold import sharing
from omlx_cache_storage.cold.disk import FileSystem, StrPath
from omlx_cache_storage.cold.small_files import Budget
from omlx_cache_storage.cold.tier import ColdTier

SMALL = 200
"""Pages of 4 KiB in a full directory, 20 KiB with their headers."""
MOST = 64
"""Files that are deleted while others wait, at most."""


class Watched(FileSystem):
    """A file system that notes how many files go in each hold of a directory's ledger. `between` is
    called after each, when others may have the directory; a file takes `seconds` to go."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.holds: list[int] = []
        self.between: Callable[[], None] = lambda: None
        self._seconds = seconds
        self._ledgers: set[int] = set()
        self._is_held = False
        self._removed = 0

    def open(self, path: StrPath, *, writing: bool = False) -> int:
        fd = super().open(path, writing=writing)
        (self._ledgers.add if str(path).endswith("ledger") else self._ledgers.discard)(fd)
        return fd

    def lock(self, fd: int, *, shared: bool = False, deadline: float = 0.0) -> bool:
        got = super().lock(fd, shared=shared, deadline=deadline)
        if got and fd in self._ledgers and not shared:
            self._is_held, self._removed = True, 0
        return got

    def unlock(self, fd: int) -> None:
        super().unlock(fd)
        if self._is_held and fd in self._ledgers:
            self._is_held = False
            self.holds.append(self._removed)
            self.between()

    def remove(self, path: StrPath) -> None:
        if str(path).endswith(".safetensors"):
            self._removed += 1
            time.sleep(self._seconds)
        super().remove(path)


@pytest.fixture
def story() -> Story:
    return Story(blocks=2 * SMALL)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A directory that is full of small pages, and its budget."""
    directory, story = tmp_path_factory.mktemp("full") / "cold", Story(blocks=2 * SMALL)
    tier = open_cold(directory, 64 * MIB)
    for number in range(1, SMALL + 1):
        assert tier.write(story.page(number), DAY, story.document) == "written"
    limit = tier.usage().nbytes + 32 * KIB
    tier.close()
    return directory, limit


@pytest.fixture
def limit(tmp_path: Path, full: tuple[Path, int]) -> int:
    """The budget of a directory `cold` that is full of small pages."""
    shutil.copytree(full[0], tmp_path / "cold")
    return full[1]


def _open(directory: Path, limit: int, fs: FileSystem | None = None) -> ColdTier:
    return open_cold(directory / "cold", limit, fs=fs)


def _numbers(fs: Watched, least: int) -> None:
    """Assert that so many files went, and never many in one hold."""
    assert sum(fs.holds) >= least
    assert max(fs.holds) <= MOST


@pytest.mark.parametrize(("part", "least"), [(4, SMALL // 2), (1 << 40, SMALL)])
def test_a_lower_budget_is_reached_in_short_holds(
    tmp_path: Path, limit: int, part: int, least: int
) -> None:
    fs = Watched()
    tier = _open(tmp_path, limit, fs)
    set_budget(tmp_path / "cold", Budget(limit // part, "quota"))
    tier.settle()
    _numbers(fs, least)
    assert disk_usage(tmp_path / "cold") <= tier.usage().nbytes
    assert tier.usage().nbytes <= limit // part or files_in(tmp_path / "cold") == []


def test_pages_are_deleted_on_request_in_short_holds(
    tmp_path: Path, limit: int, story: Story
) -> None:
    fs = Watched()
    tier = _open(tmp_path, limit, fs)
    assert tier.discard(story.ids(*range(1, SMALL + 1))) == SMALL
    _numbers(fs, SMALL)


def test_slow_deletions_end_a_hold_before_it_has_its_files(
    tmp_path: Path, limit: int, story: Story
) -> None:
    fs = Watched(0.006)
    tier = _open(tmp_path, limit, fs)
    tier.discard(story.ids(*range(SMALL - 40, SMALL + 1)))
    assert sum(fs.holds) == 41
    assert max(fs.holds) <= 4, "four of them take more than 20 ms"


def test_room_for_a_large_page_is_made_in_short_holds(tmp_path: Path, limit: int) -> None:
    fs, large = Watched(), Story("large", nbytes=3 * MIB)
    tier = _open(tmp_path, limit, fs)
    assert tier.write(large.page(1), DAY + 1, large.document) == "written"
    _numbers(fs, 100)
    usage = tier.usage()
    assert disk_usage(tmp_path / "cold") <= usage.nbytes <= usage.peak_bytes <= limit
    assert usage.evicted_pages < 170, "no more than the page needs"
    tier.check_integrity()


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from test_holds_are_short import DAY, MIB, Story, Watched, _open
fs, large = Watched(), Story("large", nbytes=3 * MIB)
def wait():
    if sum(fs.holds):
        fs.between = lambda: None
        print("between", flush=True)
        sys.stdin.readline()
fs.between = wait
tier = _open(Path(sys.argv[1]), int(sys.argv[2]), fs)
print(tier.write(large.page(1), DAY + 1, large.document), flush=True)
"""


def test_what_a_killed_process_reserved_is_given_back(
    tmp_path: Path, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = _open(tmp_path, limit)
    before = tier.usage().nbytes
    with program(WRITER, tmp_path, str(limit), Path(__file__).parent) as writer:
        assert said(writer) == "between\n"
        kill_9(writer)
    monkeypatch.setattr(sharing, "ABANDONED_SECONDS", 0.0)
    tier.settle()
    assert tier.usage().nbytes < before, "what it evicted is free, and no longer reserved"
    again = _open(tmp_path, limit)
    assert again.usage().nbytes == tier.usage().nbytes
