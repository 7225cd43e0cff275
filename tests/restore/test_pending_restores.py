"""A restore that was begun reads while others compute, within one budget, and waits for nobody:
reads that hang keep no buffers, and leave threads for the requests behind them."""

import gc
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from kit.examples import some
from kit.remote.processes import until
from kit.restoring import (
    BLOCK,
    DENSE,
    HYBRID,
    TOKENS,
    WINDOWED,
    Conversation,
    PagedDisk,
)
from omlx_cache import BlockStore
from omlx_cache.restore.pending import PendingRestore
from omlx_cache.restore.queue import MOST_THREADS, STUCK_SECONDS, THREADS, RestoreQueue
from omlx_cache.store import READ_THREADS
from omlx_cache_storage import io_threads
from omlx_cache_storage.remote.lookups import Asked, Inquiry

FAMILIES = (DENSE, WINDOWED, HYBRID)
PATIENCE = 30.0


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Conversation]:
    return {name: Conversation(name, tmp_path_factory.mktemp("cold")) for name in FAMILIES}


@pytest.fixture
def talk(talks: dict[str, Conversation]) -> Conversation:
    return talks[DENSE]


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
    assert queue.nbytes == 0


@pytest.fixture
def cold(talk: Conversation, disk: PagedDisk) -> Iterator[BlockStore]:
    """A store that has the dense conversation on the disk only."""
    with talk.open(disk, hot_bytes=0, queue_bytes="1MiB") as store:
        yield store
        disk.gate.set()


def wait_until_ready(pending: PendingRestore) -> None:
    assert pending.wait(PATIENCE)
    assert pending.ready


@pytest.mark.parametrize("family", some(FAMILIES, HYBRID))
@pytest.mark.parametrize("hot_bytes", ["256MiB", "64KiB", "0"])
def test_it_serves_any_prefix_and_reads_each_page_once(
    talks: dict[str, Conversation],
    disk: PagedDisk,
    queue: RestoreQueue,
    family: str,
    hot_bytes: str,
) -> None:
    talk = talks[family]
    with talk.open(disk, hot_bytes=hot_bytes, queue_bytes="1MiB") as store:
        pending = talk.pending(store, queue)
        assert not pending.started
        pending.start()
        pending.start()
        wait_until_ready(pending)
        opened = dict(disk.opened)
        taken = pending.take(deadline=0.0)
        assert dict(disk.opened) == opened
        assert (taken.point.position, taken.point.reason) == (TOKENS, None)
        assert taken.cold_tokens == TOKENS
        assert talk.is_exact(taken.prompt_cache, TOKENS)
        assert set(disk.payloads.values()) == {1}
        store.hot.check_integrity()


def test_what_is_in_memory_is_ready_at_once_and_needs_no_thread(
    talk: Conversation, disk: PagedDisk, queue: RestoreQueue
) -> None:
    with talk.open(disk) as store:
        talk.restore(store)
        opened = dict(disk.opened)
        pending = talk.pending(store, queue)
        pending.start()
        assert pending.ready
        taken = pending.take(deadline=0.0)
        assert (taken.point.position, taken.cold_tokens) == (TOKENS, 0)
        assert talk.is_exact(taken.prompt_cache, TOKENS)
        assert dict(disk.opened) == opened


def test_one_number_bounds_what_waits_and_the_first_is_served_first(
    talk: Conversation, disk: PagedDisk
) -> None:
    with talk.open(disk, hot_bytes="0", queue_bytes="1MiB") as store:
        probe = RestoreQueue(1 << 30)
        first = talk.pending(store, probe)
        first.start()
        wait_until_ready(first)
        one = probe.nbytes
        first.cancel()
        assert probe.nbytes == 0
        assert probe.shutdown(PATIENCE)

        queue = RestoreQueue(2 * one)
        line = [talk.pending(store, queue) for _ in range(4)]
        for pending in line:
            pending.start()
        wait_until_ready(line[0])
        wait_until_ready(line[1])
        assert not line[2].ready
        assert not line[3].ready
        assert queue.nbytes == 2 * one
        line[1].cancel()
        line[1].cancel()
        wait_until_ready(line[2])
        assert not line[3].ready
        assert line[0].take(0.0).point.position == TOKENS
        wait_until_ready(line[3])
        assert queue.peak_bytes == 2 * one
        assert line[3].take(0.0).point.position == TOKENS
        assert line[2].take(0.0).point.position == TOKENS
        assert queue.nbytes == 0
        assert queue.shutdown(PATIENCE)


def test_one_larger_than_the_queue_wakes_who_waits_and_is_read_on_the_spot(
    talk: Conversation, disk: PagedDisk
) -> None:
    queue = RestoreQueue(1000)
    with talk.open(disk) as store:
        pending, other = talk.pending(store, queue), talk.pending(store, queue)
        pending.start()
        other.start()
        assert pending.wait(PATIENCE)
        assert pending.take(PATIENCE).point.position == TOKENS
        assert other.take(None).point.position == TOKENS
        assert (queue.peak_bytes, queue.nbytes) == (0, 0)
        assert queue.shutdown(PATIENCE)


@pytest.mark.parametrize("end", ["cancel", "shutdown"])
def test_who_waits_is_woken_when_the_restore_is_given_up(
    talk: Conversation, disk: PagedDisk, queue: RestoreQueue, end: str
) -> None:
    disk.hold = lambda position, group: group == "paged"
    with talk.open(disk) as store:
        pending = talk.pending(store, queue)
        pending.start()
        assert disk.reached.acquire(timeout=PATIENCE)
        waiting = threading.Thread(target=pending.wait, daemon=True)
        waiting.start()
        if end == "cancel":
            pending.cancel()
        else:
            queue.shutdown(0.0)
        waiting.join(PATIENCE)
        assert not waiting.is_alive()
        disk.gate.set()


def test_a_process_that_has_no_thread_left_reads_on_the_spot(
    talk: Conversation,
    disk: PagedDisk,
    queue: RestoreQueue,
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    def refuse(worker: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(io_threads, "_idle", deque())
    with talk.open(disk) as store:
        pending = talk.pending(store, queue)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            pending.start()
            assert pending.wait(PATIENCE)
        assert pending.take(PATIENCE).point.position == TOKENS


def test_threads_that_hang_are_bounded(
    talk: Conversation, disk: PagedDisk, queue: RestoreQueue
) -> None:
    with talk.open(disk) as store:
        disk.hold = lambda position, group: True
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
    talk: Conversation, disk: PagedDisk
) -> None:
    with talk.open(disk) as store:
        talk.restore(store)
        pages = [held.id for held in store.hot.entries()]
        store.hot.discard(pages[: len(pages) // 2])
        for _ in range(READ_THREADS):
            store.read_pool.submit(disk.gate.wait, PATIENCE)
        done: list[int] = []
        restoring = threading.Thread(
            target=lambda: done.append(talk.pending(store, store.restores).take(0.0).point.position)
        )
        restoring.start()
        restoring.join(PATIENCE)
        assert len(done) == 1
        assert 0 < done[0] < TOKENS
        disk.gate.set()


def _active() -> int:
    gc.collect()
    return int(mx.get_active_memory())


def test_at_a_deadline_the_buffers_are_handed_over_and_not_doubled(
    talk: Conversation, cold: BlockStore, disk: PagedDisk, queue: RestoreQueue
) -> None:
    before = _active()
    disk.hold = lambda position, group: position == 4 * BLOCK
    pending = talk.pending(cold, queue)
    pending.start()
    assert disk.reached.acquire(timeout=PATIENCE)
    one = 0

    def has_grown() -> bool:
        nonlocal one
        one = _active() - before
        return one > 200 << 10

    until(has_grown)
    taken = pending.take(0.2)
    assert (taken.point.position, taken.point.reason) == (3 * BLOCK, "deadline")
    assert _active() - before <= 1.1 * one
    assert talk.is_exact(taken.prompt_cache, 3 * BLOCK)
    del taken
    until(lambda: _active() - before <= one / 4)


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
    talk: Conversation,
    tmp_path: Path,
    queue: RestoreQueue,
    monkeypatch: pytest.MonkeyPatch,
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
