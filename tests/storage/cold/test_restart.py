"""What a cold directory is after a restart: the same pages in the same order, and nothing else."""

import contextlib
import errno
import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

import pytest

from benchmarks.growth_pages import Directory
from kit.storage import (
    FaultyDisk,
    Story,
    disk_usage,
    expected_payload,
    files_in,
    open_cold,
    read_cold,
)
from kit.units import KIB
from omlx_cache_daemon.changing import remove_namespace
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.eviction.keep import SUPERSEDED_NS, Clock
from omlx_cache_storage.format.names import (
    BUDGET_FILE,
    LEDGER_FILE,
    NAMESPACE_FILE,
    PINS_FILE,
    PageName,
    format_name,
)

PAGE = 128 * KIB
ROOT_FILES = {"CACHEDIR.TAG", "budget.json", "ledger"}


def _store(tier: ColdTier, story: Story, *numbers: int) -> None:
    clock = Clock()
    for page in story.pages(*numbers):
        assert tier.write(page, clock.now(), story.document) == "written"
    tier.touch(story.ids(*numbers))
    tier.settle()


def _stored(directory: Path, story: Story, *numbers: int) -> None:
    """Store pages in a process that ends then."""
    with contextlib.closing(open_cold(directory)) as tier:
        _store(tier, story, *numbers)


def _order(tier: ColdTier, *stories: Story) -> list[tuple[int, int]]:
    known = {s.id(n): (which, n) for which, s in enumerate(stories) for n in range(1, 20)}
    return [known[file.id] for file in sorted(tier.records(), key=attrgetter("rank"))]


@pytest.fixture
def other_process() -> Iterator[int]:
    """The id of a process that lives as long as the test."""
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        yield process.pid
        process.stdin.close()


def test_pages_and_their_order_survive_a_restart(tmp_path: Path, story: Story) -> None:
    other = Story("other")
    first = open_cold(tmp_path)
    _store(first, story, 1, 2, 3)
    _store(first, other, 1, 2)
    first.touch(story.ids(1, 2))
    first.demote(other.ids(2), SUPERSEDED_NS)
    first.settle()
    expected = _order(first, story, other)
    assert expected == [(1, 2), (0, 3), (1, 1), (0, 2), (0, 1)]
    first.close()

    second = open_cold(tmp_path)
    assert _order(second, story, other) == expected
    for page in (*story.ids(1, 2, 3), *other.ids(1, 2)):
        assert read_cold(second, page) == expected_payload(page, 4 * KIB)
    assert second.usage().nbytes == first.usage().nbytes >= disk_usage(tmp_path)
    second.check_integrity()


def test_a_root_is_not_older_than_its_deep_end_though_its_last_use_was_not_recorded(
    tmp_path: Path, story: Story
) -> None:
    other = Story("other")
    killed = open_cold(tmp_path)
    for number in (1, 2):
        assert killed.write(story.page(number), 10**18, story.document) == "written"
    assert killed.write(other.page(1), 10**18 + 1, other.document) == "written"
    killed.touch(story.ids(1, 2), 10**18 + 2)
    snapshot = story.page(2, group="state", held=0)
    assert killed.write(snapshot, 10**18, story.document) == "written"
    for number in (3, 4):
        assert killed.write(story.page(number), 10**18 + 2, story.document) == "written"
    killed.close()
    found = [file.id for file in sorted(open_cold(tmp_path).records(), key=attrgetter("rank"))]
    assert found == [snapshot.meta.id, other.id(1), *story.ids(4, 3, 2, 1)]


def test_a_start_opens_no_page(tmp_path: Path, story: Story) -> None:
    for number in range(2000):
        key = number.to_bytes(2, "little") + bytes(30)
        name = PageName(story.id(1)._replace(key=key), bytes(8), 16, 16, False)
        path = tmp_path / story.namespace.hex() / key[:1].hex() / format_name(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    disk, opened = FaultyDisk(), set[str]()
    disk.each["open"] = lambda path: opened.add(os.path.basename(path))
    tier = open_cold(tmp_path, fs=disk)
    assert tier.usage().pages == 2000
    assert opened <= {BUDGET_FILE, PINS_FILE, LEDGER_FILE}
    assert disk.calls["read"] == 0, "there is none yet"
    # The root, the namespace, and each of 256 shards twice: for its pages, for what is empty.
    assert disk.calls["scan"] < 600


def test_a_directory_over_its_budget_is_trimmed_tails_first(tmp_path: Path) -> None:
    story = Story(nbytes=PAGE)
    _stored(tmp_path, story, 1, 2, 3, 4, 5, 6)
    # Header, blocks and a shard for each page; directories, the ledger and other small files.
    limit = 3 * (PAGE + 24 * KIB) + 64 * KIB
    tier = open_cold(tmp_path, limit)
    assert _order(tier, story) == [(0, 3), (0, 2), (0, 1)]
    assert len(files_in(tmp_path)) == 3
    assert disk_usage(tmp_path) <= tier.usage().nbytes <= limit
    assert tier.usage().peak_bytes <= limit
    tier.check_integrity()


def test_leftovers_of_dead_writers_are_removed(tmp_path: Path, story: Story) -> None:
    _stored(tmp_path, story, 1)
    shard = files_in(tmp_path)[0].parent
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait()
    names = [
        f".tmp-{dead.pid}-abc-0",
        f".tmp-{os.getpid()}-0",
        f".tmp-{os.getpid()}-00000000-7",
        ".tmp-",
        ".tmp-x-1",
        ".tmp--1-a-0",
        f".tmp-{10**30}-a-0",
        ".tmp-0-a-0",
    ]
    for name in names:
        (shard / name).write_bytes(b"torn")
        (shard.parent / name).write_bytes(b"torn")
    tier = open_cold(tmp_path)
    assert files_in(tmp_path, ".tmp-*") == []
    assert tier.usage().pages == 1


def test_files_that_a_living_process_writes_are_kept_for_an_hour(
    tmp_path: Path, story: Story, other_process: int
) -> None:
    _stored(tmp_path, story, 1)
    shard = files_in(tmp_path)[0].parent
    fresh, old = (shard / f".tmp-{other_process}-abc-{n}" for n in (0, 1))
    fresh.write_bytes(b"half")
    old.write_bytes(b"half")
    hours_ago = time.time() - 2 * 3600
    os.utime(old, (hours_ago, hours_ago))
    open_cold(tmp_path)
    assert files_in(tmp_path, ".tmp-*") == [fresh]


def test_of_two_files_of_one_page_the_fuller_is_kept(tmp_path: Path, story: Story) -> None:
    first = open_cold(tmp_path)
    assert first.write(story.page(1, held=8), 10**18, story.document)
    (small,) = files_in(tmp_path)
    kept = small.read_bytes()
    assert first.write(story.page(1), 10**18, story.document)
    (full,) = files_in(tmp_path)
    first.close()
    small.write_bytes(kept)
    second = open_cold(tmp_path)
    assert files_in(tmp_path) == [full]
    info = second.info(story.id(1))
    assert info.held == 16
    second.check_integrity()


def test_empty_directories_go_and_are_made_again(tmp_path: Path) -> None:
    tier = open_cold(tmp_path)
    first = Story("the tag comes with the first page")
    assert tier.write(first.page(1), 10**18, first.document) == "written"
    tier.discard(first.ids(1))
    empty = tier.usage().nbytes
    for turn in range(50):
        story = Story(f"tenant {turn}")
        assert tier.write(story.page(1), 10**18, story.document) == "written"
        assert (tmp_path / story.namespace.hex() / NAMESPACE_FILE).exists()
        assert tier.discard(story.ids(1)) == 1
        assert tier.usage().nbytes == empty
        assert {path.name for path in tmp_path.iterdir()} == ROOT_FILES
    tier.close()
    (tmp_path / Story().namespace.hex() / "ab").mkdir(parents=True)
    (tmp_path / Story().namespace.hex() / NAMESPACE_FILE).write_text("{}")
    open_cold(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == ROOT_FILES


@pytest.mark.parametrize("how", ["removed", "evicted before the start"])
def test_a_rate_goes_with_its_namespace(tmp_path: Path, how: str) -> None:
    story = Story()
    tier = open_cold(tmp_path)
    assert tier.write(story.page(1), 10**18, story.document) == "written"
    tier.close()
    place = tmp_path / story.namespace.hex()
    rate = place / "prefill.json"
    rate.write_text('{"model": "m", "tokens": 45678, "seconds": 12.5}')
    rate.chmod(0o600)
    if how == "removed":
        remove_namespace(tmp_path, story.namespace)
    else:
        for page in place.rglob("*.safetensors"):
            page.unlink()
        open_cold(tmp_path).close()
    assert not place.exists()


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
