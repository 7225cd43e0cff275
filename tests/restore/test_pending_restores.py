"""A restore that was begun reads while others compute, within one budget, and waits for nobody."""

import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.drive import feed, request, settings
from kit.restoring import (
    BLOCK,
    DENSE,
    HYBRID,
    TOKENS,
    WINDOWED,
    Conversation,
    PagedDisk,
    contents,
)
from omlx_cache import BlockStore, PrefixCache
from omlx_cache.arrays.mlxio import allocate_payload
from omlx_cache.restore import queue as queue_module
from omlx_cache.restore.pending import PendingRestore
from omlx_cache.restore.queue import RestoreQueue
from omlx_cache_storage.page import PageId

FAMILIES = (DENSE, WINDOWED, HYBRID)
PATIENCE = 30.0


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Conversation]:
    return {name: Conversation(name, tmp_path_factory.mktemp("cold")) for name in FAMILIES}


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


def wait_until_ready(pending: PendingRestore) -> None:
    assert pending.wait(PATIENCE)
    assert pending.ready


@pytest.mark.parametrize("family", FAMILIES)
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
        assert not pending.ready
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


def test_begin_returns_while_the_disk_hangs_and_polling_says_not_ready(
    talks: dict[str, Conversation], disk: PagedDisk, queue: RestoreQueue
) -> None:
    disk.hold = lambda position, group: True
    talk = talks[DENSE]
    with talk.open(disk) as store:
        pending = talk.pending(store, queue)
        pending.start()
        assert disk.reached.acquire(timeout=PATIENCE)
        assert not pending.ready
        disk.gate.set()
        wait_until_ready(pending)
        assert pending.take().point.position == TOKENS


def test_past_the_deadline_the_contiguous_part_that_came_is_restored(
    talks: dict[str, Conversation], disk: PagedDisk, queue: RestoreQueue
) -> None:
    disk.hold = lambda position, group: position == 4 * BLOCK
    talk = talks[DENSE]
    with talk.open(disk, hot_bytes=0, queue_bytes="1MiB") as store:
        pending = talk.pending(store, queue)
        pending.start()
        assert disk.reached.acquire(timeout=PATIENCE)
        began = time.monotonic()
        taken = pending.take(deadline=0.2)
        assert time.monotonic() - began < PATIENCE
        assert (taken.point.position, taken.point.reason) == (3 * BLOCK, "deadline")
        # The model goes on in the room to grow, where the late page would have come.
        feed(talk.model, taken.prompt_cache, talk.tokens[3 * BLOCK : 5 * BLOCK])
        before = contents(taken.prompt_cache)
        disk.gate.set()
        assert queue.shutdown(PATIENCE)
        assert contents(taken.prompt_cache) == before
        assert talk.is_exact(taken.prompt_cache, 5 * BLOCK)


@pytest.mark.parametrize("family", [WINDOWED, HYBRID])
def test_past_the_deadline_windows_and_states_come_from_memory_only(
    talks: dict[str, Conversation], disk: PagedDisk, queue: RestoreQueue, family: str
) -> None:
    disk.hold = lambda position, group: group != "paged"
    talk = talks[family]
    with talk.open(disk) as store:
        pending = talk.pending(store, queue)
        pending.start()
        assert disk.reached.acquire(timeout=PATIENCE)
        taken = pending.take(deadline=0.1)
        assert (taken.point.position, taken.point.reason) == (0, "deadline")
        assert all(cache.empty() for cache in taken.prompt_cache if hasattr(cache, "empty"))


def test_what_is_in_memory_is_ready_at_once_and_needs_no_thread(
    talks: dict[str, Conversation], disk: PagedDisk, queue: RestoreQueue
) -> None:
    talk = talks[DENSE]
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


def test_blocks_that_others_stored_since_it_began_are_taken_too(
    talks: dict[str, Conversation], queue: RestoreQueue, tmp_path: Path
) -> None:
    talk = talks[DENSE]
    with BlockStore(settings(tmp_path)) as store:
        cache = PrefixCache(talk.model, store)
        request(talk.model, cache, talk.tokens[: 2 * BLOCK])
        pending = talk.pending(store, queue)
        pending.start()
        request(talk.model, cache, talk.tokens)
        taken = pending.take(deadline=0.0)
        assert (taken.point.position, taken.cold_tokens) == (TOKENS, 0)
        assert talk.is_exact(taken.prompt_cache, TOKENS)


@pytest.mark.parametrize("deadline", [None, PATIENCE])
def test_taking_before_it_was_started_restores_on_the_spot(
    talks: dict[str, Conversation], disk: PagedDisk, queue: RestoreQueue, deadline: float | None
) -> None:
    talk = talks[HYBRID]
    with talk.open(disk) as store:
        taken = talk.pending(store, queue).take(deadline)
        assert taken.point.position == TOKENS
        assert talk.is_exact(taken.prompt_cache, TOKENS)


def test_one_number_bounds_what_waits_and_the_first_is_served_first(
    talks: dict[str, Conversation], disk: PagedDisk
) -> None:
    talk = talks[DENSE]
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


def test_one_reads_at_a_time_and_the_next_beside_its_last_pages(
    talks: dict[str, Conversation], disk: PagedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_module, "STUCK_SECONDS", 2 * PATIENCE)
    talk = talks[DENSE]
    queue = RestoreQueue(1 << 30)
    with (
        talk.open(disk, hot_bytes=0, queue_bytes="1MiB") as store,
        talk.open(hot_bytes=0, queue_bytes="1MiB") as quick,
    ):
        disk.hold = lambda position, group: position == BLOCK
        first, second = talk.pending(store, queue), talk.pending(quick, queue)
        first.start()
        assert disk.reached.acquire(timeout=PATIENCE)
        second.start()
        assert not second.wait(0.2)
        disk.hold = lambda position, group: position == TOKENS
        disk.gate.set()
        disk.gate.clear()
        assert second.wait(PATIENCE)
        assert not first.ready
        disk.gate.set()
        wait_until_ready(first)
        assert queue.shutdown(PATIENCE)


def test_one_larger_than_the_queue_wakes_who_waits_and_is_read_on_the_spot(
    talks: dict[str, Conversation], disk: PagedDisk
) -> None:
    talk = talks[DENSE]
    queue = RestoreQueue(1000)
    with talk.open(disk) as store:
        pending, other = talk.pending(store, queue), talk.pending(store, queue)
        pending.start()
        other.start()
        assert not pending.wait(PATIENCE)
        assert pending.refused
        assert pending.take(PATIENCE).point.position == TOKENS
        assert other.take(None).point.position == TOKENS
        assert (queue.peak_bytes, queue.nbytes) == (0, 0)
        assert queue.shutdown(PATIENCE)


def test_a_handle_lost_in_a_cycle_gives_its_bytes_back_without_a_lock(
    talks: dict[str, Conversation], disk: PagedDisk, queue: RestoreQueue
) -> None:
    talk = talks[DENSE]
    with talk.open(disk) as store:
        pending = talk.pending(store, queue)
        pending.start()
        wait_until_ready(pending)
        assert queue.nbytes > 0
        cycle: list[Any] = [pending]
        cycle.append(cycle)
        del pending, cycle
        with queue._lock:
            # A finalizer that took this lock would hang here.
            gc.collect()
        assert len(queue.lost) == 1
        assert queue.nbytes == 0


def test_cancelling_from_another_thread_frees_the_buffers_while_a_read_hangs(
    talks: dict[str, Conversation], disk: PagedDisk, queue: RestoreQueue
) -> None:
    disk.hold = lambda position, group: position == 2 * BLOCK
    talk = talks[DENSE]
    with talk.open(disk) as store:
        pending = talk.pending(store, queue)
        pending.start()
        assert disk.reached.acquire(timeout=PATIENCE)
        thread = threading.Thread(target=pending.cancel)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert queue.nbytes == 0
        disk.gate.set()
        assert talk.pending(store, queue).take().point.position == TOKENS


def test_a_disk_that_refuses_all_is_a_miss_with_its_reason(
    talks: dict[str, Conversation], disk: PagedDisk, queue: RestoreQueue
) -> None:
    talk = talks[HYBRID]
    with talk.open(disk) as store:
        disk.refuse = lambda position, group: True
        pending = talk.pending(store, queue)
        pending.start()
        taken = pending.take()
        assert (taken.point.position, taken.point.reason) == (0, "unreadable")
        assert sum(disk.opened.values()) <= 8


def test_a_queue_that_is_shut_down_restores_nothing_and_hangs_nobody(
    talks: dict[str, Conversation], disk: PagedDisk
) -> None:
    disk.hold = lambda position, group: True
    talk = talks[DENSE]
    queue = RestoreQueue(1 << 30)
    with talk.open(disk) as store:
        pending = talk.pending(store, queue)
        pending.start()
        assert disk.reached.acquire(timeout=PATIENCE)
        assert not queue.shutdown(0.05)
        assert pending.take(0.05).point.position == 0
        disk.gate.set()
        assert queue.shutdown(PATIENCE)


def test_a_page_that_another_brought_in_by_the_deadline_is_used(
    talks: dict[str, Conversation], disk: PagedDisk, queue: RestoreQueue
) -> None:
    talk = talks[DENSE]
    deepest = TOKENS // BLOCK * BLOCK
    disk.hold = lambda position, group: (position, group) == (deepest, "paged")
    with talk.open(disk) as store:
        pending = talk.pending(store, queue)
        pending.start()
        assert disk.reached.acquire(timeout=PATIENCE)
        disk.hold = lambda position, group: False
        # All of them, as the others' reads may not have ended either.
        pages = [PageId(talk.chain().key(end), "paged") for end in range(BLOCK, TOKENS, BLOCK)]
        prefetch = store.prefetch(pages, allocate_payload)
        assert prefetch.wait(PATIENCE)
        assert all(store.held(page) is not None for page in pages)
        taken = pending.take(deadline=0.0)
        assert taken.point.position >= deepest
        assert talk.is_exact(taken.prompt_cache, taken.point.position)
        disk.gate.set()


@pytest.mark.parametrize("end", ["cancel", "shutdown"])
def test_who_waits_is_woken_when_the_restore_is_given_up(
    talks: dict[str, Conversation], disk: PagedDisk, queue: RestoreQueue, end: str
) -> None:
    disk.hold = lambda position, group: group == "paged"
    with talks[DENSE].open(disk) as store:
        pending = talks[DENSE].pending(store, queue)
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
