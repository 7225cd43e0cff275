"""However much of a disk fails, a restore asks it a handful of times and gives one reason."""

import errno
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from kit.examples import some
from kit.executors import EXECUTORS, compute_on
from kit.plain import PlainChain, is_right
from kit.restoring import PagedDisk
from kit.storage import FaultyDisk
from omlx_cache_storage.format.names import parse_name

BLOCKS = 2048
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


def test_one_page_that_fails_costs_one_page_and_what_lies_behind_it(directory: Path) -> None:
    disk = PagedDisk()
    chain = PlainChain(BLOCKS)
    bad = 100 * chain.size
    with chain.open(directory, disk, hot_bytes="0") as store:
        disk.refuse = lambda position, group: position == bad
        caches, restored = chain.restore(store)
        assert restored.point.position == bad - chain.size
        assert is_right(caches, bad - chain.size)
        assert sum(disk.opened.values()) <= 100 + 2 * HANDFUL


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


def test_a_read_that_fails_ends_the_walk_where_a_flipped_bit_does(tmp_path: Path) -> None:
    chain = PlainChain(12)
    with chain.open(tmp_path) as store:
        chain.store(store)
    for path in tmp_path.rglob("*.safetensors"):
        name = parse_name(path.name)
        if name is not None and name.position in (5 * chain.size, 9 * chain.size):
            raw = bytearray(path.read_bytes())
            raw[-1] ^= 1
            path.write_bytes(raw)
    with chain.open(tmp_path, hot_bytes="0") as store:
        caches, restored = chain.restore(store)
        assert (restored.point.position, restored.point.reason) == (4 * chain.size, "corrupt")
        assert is_right(caches, 4 * chain.size)
        assert store.find(chain.id(5)) is None


@pytest.mark.parametrize("operation", ["read", "read_into"])
def test_when_every_read_fails_only_a_handful_are_tried(directory: Path, operation: str) -> None:
    disk = FaultyDisk()
    chain = PlainChain(BLOCKS)
    with chain.open(directory, disk) as store:
        disk.fail[operation] = errno.EIO
        for _ in range(5):
            caches, restored = chain.restore(store)
            assert (restored.point.position, restored.point.reason) == (0, "unreadable")
            assert is_right(caches, 0)
        assert disk.calls["open"] <= HANDFUL


@pytest.mark.parametrize("length", some([0, 7, 8, 4000], 0, 4000))
def test_when_every_file_is_cut_short_only_a_handful_are_opened(
    directory: Path, tmp_path: Path, length: int
) -> None:
    shutil.copytree(directory, tmp_path / "cold")
    for path in (tmp_path / "cold").rglob("*.safetensors"):
        os.truncate(path, length)
    disk = PagedDisk()
    chain = PlainChain(BLOCKS)
    with chain.open(tmp_path / "cold", disk) as store:
        _, restored = chain.restore(store)
        assert (restored.point.position, restored.point.reason) == (0, "corrupt")
        assert sum(disk.opened.values()) <= HANDFUL
