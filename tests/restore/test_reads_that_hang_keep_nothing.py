"""Reads ahead that hang keep no buffers, and leave threads for the requests behind them."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from kit.restoring import BLOCK, DENSE, TOKENS, Conversation, PagedDisk
from omlx_cache import BlockStore
from omlx_cache.restore.pending import PendingRestore
from omlx_cache.restore.queue import THREADS, RestoreQueue
from omlx_cache_storage.remote.lookups import Asked, Inquiry

PATIENCE = 30.0


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Conversation:
    return Conversation(DENSE, tmp_path_factory.mktemp("cold"))


@pytest.fixture
def disk() -> Iterator[PagedDisk]:
    disk = PagedDisk()
    yield disk
    disk.gate.set()


@pytest.fixture
def queue(disk: PagedDisk) -> Iterator[RestoreQueue]:
    queue = RestoreQueue(1 << 30)
    yield queue
    disk.gate.set()
    assert queue.shutdown(PATIENCE)


@pytest.fixture
def cold(talk: Conversation, disk: PagedDisk) -> Iterator[BlockStore]:
    with talk.open(disk, hot_bytes=0, queue_bytes="1MiB") as store:
        yield store
        disk.gate.set()


def _active() -> int:
    gc.collect()
    return int(mx.get_active_memory())


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _hanging(
    talk: Conversation, store: BlockStore, disk: PagedDisk, queue: RestoreQueue
) -> PendingRestore:
    disk.hold = lambda position, group: position == 4 * BLOCK
    pending = talk.pending(store, queue)
    pending.start()
    assert disk.reached.acquire(timeout=PATIENCE)
    return pending


def test_at_a_deadline_the_buffers_are_handed_over_and_not_doubled(
    talk: Conversation, cold: BlockStore, disk: PagedDisk, queue: RestoreQueue
) -> None:
    before = _active()
    pending = _hanging(talk, cold, disk, queue)
    one = 0

    def has_grown() -> bool:
        nonlocal one
        one = _active() - before
        return one > 200 << 10

    _until(has_grown)
    taken = pending.take(0.2)
    assert (taken.point.position, taken.point.reason) == (3 * BLOCK, "deadline")
    assert _active() - before <= 1.1 * one
    assert talk.is_exact(taken.prompt_cache, 3 * BLOCK)
    del taken
    _until(lambda: _active() - before <= one / 4)


def test_a_restore_that_is_cancelled_keeps_no_buffers(
    talk: Conversation, cold: BlockStore, disk: PagedDisk, queue: RestoreQueue
) -> None:
    before = _active()
    pending = _hanging(talk, cold, disk, queue)
    _until(lambda: _active() - before > 200 << 10)
    pending.cancel()
    _until(lambda: _active() - before < 100 << 10)


def test_restores_whose_reads_all_hang_leave_threads_for_others(
    talk: Conversation, cold: BlockStore, disk: PagedDisk, queue: RestoreQueue
) -> None:
    disk.hold = lambda position, group: True
    with talk.open(hot_bytes=0, queue_bytes="1MiB") as sound:
        hung = [talk.pending(cold, queue) for _ in range(THREADS)]
        for pending in hung:
            pending.start()
        for _ in range(THREADS):
            assert disk.reached.acquire(timeout=PATIENCE)
        other = talk.pending(sound, queue)
        other.start()
        assert other.wait(PATIENCE / 3)
        assert other.take(0.0).point.position == TOKENS
        for pending in hung:
            pending.cancel()


def test_requests_that_wait_for_other_machines_hold_up_no_other(
    talk: Conversation, tmp_path: Path, queue: RestoreQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()

    def ask(inquiry: Inquiry, timeout: float | None = None) -> Asked:
        if timeout != 0:
            assert answer.wait(PATIENCE)
        return Asked(news=False)

    with (
        talk.open(hot_bytes=0, queue_bytes="1MiB") as store,
        BlockStore(store.settings.model_copy(update={"cold_dir": tmp_path})) as asking,
    ):
        monkeypatch.setattr(type(asking), "asks", property(lambda self: self is asking))
        monkeypatch.setattr(asking, "ask", ask)
        silent = [talk.pending(asking, queue) for _ in range(2)]
        for pending in silent:
            pending.start()
        other = talk.pending(store, queue)
        other.start()
        try:
            assert other.wait(PATIENCE / 3)
        finally:
            answer.set()
        assert other.take(0.0).point.position == TOKENS
        for pending in silent:
            assert pending.take(PATIENCE).point.position == 0
