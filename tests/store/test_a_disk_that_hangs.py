"""No caller's thread touches the file system: whatever hangs, each call returns in its time."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit import zoo
from kit.drive import random_tokens, request, settings
from kit.examples import some
from kit.hung import KNOWN, STALLED, make_calls
from kit.restoring import DENSE, Conversation, PagedDisk
from kit.storage.hanging import OPERATIONS, HangingDisk, in_time
from omlx_cache import BlockStore, PrefixCache
from omlx_cache_storage.io_threads import came, note_answer

ALL = "everything"


@pytest.fixture(autouse=True)
def _as_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omlx_cache.store.OPEN_SECONDS", 1.8)


@pytest.fixture(scope="module")
def model() -> Any:
    return zoo.build("llama")


@pytest.fixture
def disk() -> Iterator[HangingDisk]:
    disk = HangingDisk()
    yield disk
    disk.go()


def _store(directory: Path, disk: HangingDisk, **fields: Any) -> BlockStore:
    return BlockStore(settings(directory, **fields), filesystem=disk)


def _hang(disk: HangingDisk, operation: str) -> None:
    disk.hang(*(OPERATIONS if operation == ALL else [operation]))


@pytest.mark.parametrize("operation", some([ALL, *OPERATIONS], ALL))
def test_each_call_returns_in_its_time(
    tmp_path: Path, model: Any, disk: HangingDisk, operation: str
) -> None:
    with BlockStore(settings(tmp_path)) as peer:
        request(model, PrefixCache(model, peer), KNOWN, step=64)
    store = _store(tmp_path, disk)
    try:
        cache = PrefixCache(model, store)
        request(model, cache, random_tokens(40, 3), step=64)
        _hang(disk, operation)
        make_calls(model, cache, store)
    finally:
        disk.go()
        store.close()


@pytest.mark.parametrize("operation", some([ALL, *OPERATIONS], ALL))
def test_a_store_opens_in_its_time_and_finds_what_is_there_once_it_can(
    tmp_path: Path, model: Any, disk: HangingDisk, operation: str
) -> None:
    with BlockStore(settings(tmp_path)) as before:
        request(model, PrefixCache(model, before), KNOWN, step=64)
    _hang(disk, operation)
    store = in_time(lambda: _store(tmp_path, disk), STALLED)
    with store:
        cache = PrefixCache(model, store)
        if operation == ALL:
            assert store.stats().cold.state == "opening"
            assert in_time(lambda: cache.lookup(KNOWN), 0.2).cached_tokens == 0
        disk.go()
        assert store.flush(60)
        assert store.stats().cold.state == "ok"
        assert cache.lookup(KNOWN).cached_tokens == len(KNOWN) - 1


def test_a_slow_disk_is_waited_for_as_long_as_bytes_come(tmp_path: Path, monkeypatch: Any) -> None:
    class Slow(PagedDisk):
        """Each payload takes longer than a disk may be silent, and comes byte by byte."""

        def read_into(self, fd: int, offset: int, buffers: list[Any]) -> int:
            for _ in range(8):
                time.sleep(STALLED / 14)
                note_answer()
            return super().read_into(fd, offset, buffers)

    talk = Conversation(DENSE, tmp_path)
    with talk.open(Slow(), hot_bytes=0) as store:
        # Seven times as long as it takes from byte to byte: a busy machine is no silent disk.
        monkeypatch.setattr(came, "__defaults__", (STALLED / 2,))
        caches, restored = talk.restore(store)
        assert restored.point.position == 200
        assert talk.is_exact(caches, 200)
