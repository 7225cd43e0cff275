"""A restore that was begun reads while others compute, within one budget, and waits for nobody."""

import threading
import time
from collections.abc import Iterator

import pytest

from kit.drive import feed
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
from omlx_cache.restore.pending import PendingRestore
from omlx_cache.restore.queue import RestoreQueue

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
