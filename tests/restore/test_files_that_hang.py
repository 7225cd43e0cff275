"""A file that hangs holds up the request that wants it, and no other beyond its own deadline."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.restoring import DENSE, Conversation, PagedDisk
from omlx_cache.restore.pending import PendingRestore
from omlx_cache.restore.queue import MOST_THREADS, STUCK_SECONDS, RestoreQueue
from omlx_cache_storage import readers

PATIENCE = 30.0


class HungHeaders(PagedDisk):
    """Opens by threads that `hangs` names wait for the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 0
        self._count = threading.Lock()

    def open(self, path: Path) -> int:
        with self._count:
            hangs, self.left = self.left > 0, self.left - 1
        if hangs:
            self.reached.release()
            assert self.gate.wait(60)
        return super().open(path)


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Conversation:
    return Conversation(DENSE, tmp_path_factory.mktemp("cold"))


@pytest.fixture
def disk() -> Iterator[HungHeaders]:
    disk = HungHeaders()
    yield disk
    disk.gate.set()


@pytest.fixture
def queue(disk: HungHeaders) -> Iterator[RestoreQueue]:
    queue = RestoreQueue(1 << 30)
    yield queue
    disk.gate.set()
    assert queue.shutdown(PATIENCE)


def _hang(
    disk: HungHeaders, begin: Callable[[], PendingRestore], count: int
) -> list[PendingRestore]:
    """Begin restores whose first reads hang."""
    hung = []
    for _ in range(count):
        disk.left = 1
        pending = begin()
        pending.start()
        assert disk.reached.acquire(timeout=PATIENCE)
        hung.append(pending)
    return hung


def test_a_header_that_hangs_delays_no_restore_behind_it(
    talk: Conversation, disk: HungHeaders, queue: RestoreQueue
) -> None:
    with talk.open(disk) as store:
        hung = _hang(disk, lambda: talk.pending(store, queue), 1)
        pending = talk.pending(store, queue)
        pending.start()
        assert pending.wait(PATIENCE)
        taken = pending.take(0.0)
        assert taken.point.position == 200
        assert talk.is_exact(taken.prompt_cache, 200)
        hung[0].cancel()
        disk.gate.set()


def test_a_process_that_has_no_thread_left_reads_on_the_spot(
    talk: Conversation, disk: HungHeaders, queue: RestoreQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(worker: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(readers, "_idle", deque())
    with talk.open(disk) as store:
        pending = talk.pending(store, queue)
        with monkeypatch.context() as patch:
            patch.setattr(readers._Worker, "start", refuse)
            pending.start()
            assert not pending.wait(PATIENCE)
        assert pending.refused
        assert pending.take(PATIENCE).point.position == 200


def test_threads_that_hang_are_bounded(
    talk: Conversation, disk: HungHeaders, queue: RestoreQueue
) -> None:
    with talk.open(disk) as store:
        disk.left = 10**9
        before = threading.active_count()
        waiting = [talk.pending(store, queue) for _ in range(2 * MOST_THREADS)]
        for pending in waiting:
            pending.start()
        for pending in waiting:
            assert pending.take(STUCK_SECONDS / 10).point.position == 0
        names = [t.name for t in threading.enumerate()]
        assert threading.active_count() - before <= 2 * MOST_THREADS
        assert sum(name.startswith("omlx-cache-restore-read") for name in names) <= MOST_THREADS
        disk.gate.set()


def test_what_is_in_memory_is_restored_while_every_read_hangs(
    talk: Conversation, disk: HungHeaders
) -> None:
    with talk.open(disk) as store:
        talk.restore(store)
        pages = [held.id for held in store.hot.entries()]
        store.hot.discard(pages[: len(pages) // 2])
        disk.left = 10**9
        reads = [store.read_pool.submit(store.meta, pages[0]) for _ in range(6)]
        assert disk.reached.acquire(timeout=PATIENCE)
        done: list[int] = []
        restoring = threading.Thread(
            target=lambda: done.append(talk.pending(store, store.restores).take(0.0).point.position)
        )
        restoring.start()
        restoring.join(PATIENCE)
        assert len(done) == 1
        assert 0 < done[0] < 200
        disk.gate.set()
        for read in reads:
            read.result(PATIENCE)
