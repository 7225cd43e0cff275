"""However much of a disk fails, a restore asks it a handful of times and gives one reason."""

from collections import Counter
from pathlib import Path

import pytest

from kit.examples import some
from kit.executors import EXECUTORS, compute_on
from kit.plain import PlainChain, is_right
from kit.restoring import PagedDisk

BLOCKS = 512
HANDFUL = 8


@pytest.fixture(params=some(EXECUTORS, "unified"), autouse=True)
def executor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    compute_on(request.param, monkeypatch)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A long chain on the disk."""
    directory = tmp_path_factory.mktemp("cold")
    chain = PlainChain(BLOCKS)
    with chain.open(directory) as store:
        chain.store(store)
    return directory


def test_when_every_open_fails_only_a_handful_are_tried(directory: Path) -> None:
    disk = PagedDisk()
    chain = PlainChain(BLOCKS)
    with chain.open(directory, disk) as store:
        disk.refuse = lambda position, group: True
        caches, restored = chain.restore(store)
        assert (restored.point.position, restored.point.reason) == (0, "unreadable")
        assert sum(disk.opened.values()) <= HANDFUL
        assert store.stats().requests.misses == {}
        assert is_right(caches, 0)


@pytest.mark.parametrize("hot_bytes", ["256MiB", "0"])
def test_when_the_deep_half_fails_the_half_before_it_is_read_once(
    directory: Path, hot_bytes: str
) -> None:
    disk = PagedDisk()
    chain = PlainChain(BLOCKS)
    half = BLOCKS * chain.size // 2
    with chain.open(directory, disk, hot_bytes=hot_bytes) as store:
        disk.refuse = lambda position, group: position > half
        caches, restored = chain.restore(store)
        assert (restored.point.position, restored.point.reason) == (half, "unreadable")
        assert restored.cold_tokens == half
        assert is_right(caches, half)
        assert Counter(disk.payloads.values()) == {1: BLOCKS // 2}
        failed = sum(n for (position, _), n in disk.opened.items() if position > half)
        assert failed <= HANDFUL


def test_a_disk_that_fails_serves_what_is_in_memory(directory: Path) -> None:
    disk = PagedDisk()
    chain = PlainChain(64)
    with chain.open(directory, disk) as store:
        chain.restore(store)
        for number in range(33, 65):
            store.hot.discard([chain.id(number)])
        disk.refuse = lambda position, group: True
        before = sum(disk.opened.values())
        caches, restored = chain.restore(store)
        assert (restored.point.position, restored.cold_tokens) == (32 * chain.size, 0)
        assert is_right(caches, 32 * chain.size)
        assert sum(disk.opened.values()) - before <= HANDFUL
