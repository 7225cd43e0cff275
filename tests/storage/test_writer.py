"""The writer: bounded, in the background, and honest about what is durable."""

import errno
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from kit.storage import WriterRig, expected_payload, files_in, open_cold
from omlx_cache_storage.cold.room import DIRECTORY_SLACK_BYTES
from omlx_cache_storage.page import Page, WriteResult

KIB = 1024


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[WriterRig]:
    rig = WriterRig(tmp_path / "cold", 12 * KIB)
    yield rig
    rig.close()


def test_offered_pages_arrive_in_order_and_flush_says_so(rig: WriterRig) -> None:
    rig.put(1, 2, 3)
    assert [rig.offer(number) for number in (1, 2, 3)] == [True, True, True]
    assert rig.writer.flush(30)
    assert all(rig.on_disk(number) for number in (1, 2, 3))
    assert rig.hot.dirty() == []
    usage = rig.writer.usage()
    assert (usage.written_pages, usage.written_bytes) == (3, 12 * KIB)
    assert (usage.pending_pages, usage.pending_bytes, usage.failed_pages) == (0, 0, 0)
    assert usage.peak_bytes <= usage.limit_bytes


def test_a_full_queue_leaves_the_page_dirty_and_returns_at_once(rig: WriterRig) -> None:
    rig.put(1, 2, 3, 4)
    rig.block()
    assert [rig.offer(number) for number in (1, 2, 3)] == [True, True, True]
    assert rig.disk.reached.wait(30)
    assert not rig.offer(4)
    usage = rig.writer.usage()
    assert (usage.dropped_pages, usage.pending_pages, usage.pending_bytes) == (0, 3, 12 * KIB)
    rig.disk.gate.set()
    assert rig.writer.flush(30)
    assert not rig.on_disk(4)
    assert rig.hot.rooted([rig.story.id(4)])
    assert rig.offer(4)
    assert rig.writer.flush(30)
    assert rig.on_disk(4)


def test_pending_pages_are_readable_and_cannot_be_evicted(rig: WriterRig) -> None:
    rig.put(1)
    rig.block()
    assert rig.offer(1)
    assert rig.disk.reached.wait(30)
    assert not rig.hot.reserve(256 * KIB)
    info = rig.hot.info(rig.story.id(1))
    assert info is not None
    assert info.tier == "pending"
    found = rig.hot.get(rig.story.id(1))
    assert found is not None
    assert found.payload == expected_payload(rig.story.id(1), 4 * KIB)
    rig.disk.gate.set()
    assert rig.writer.flush(30)
    assert rig.hot.reserve(256 * KIB)


def test_flush_is_false_while_a_write_is_under_way(rig: WriterRig) -> None:
    rig.put(1)
    rig.block()
    assert rig.offer(1)
    assert rig.disk.reached.wait(30)
    assert not rig.writer.flush(0.01)
    assert files_in(rig.cold.directory) == []
    rig.disk.gate.set()
    assert rig.writer.flush(30)
    assert len(files_in(rig.cold.directory)) == 1


def test_who_waits_for_progress_gets_its_turn(rig: WriterRig) -> None:
    rig.put(1, 2, 3, 4)
    rig.block()
    for number in (1, 2, 3):
        assert rig.offer(number)
    taken: list[bool] = []

    def wait_and_offer() -> None:
        while not rig.writer.has_room(rig.story.nbytes) and rig.writer.wait_for_progress(30):
            pass
        taken.append(rig.offer(4))

    waiting = threading.Thread(target=wait_and_offer)
    waiting.start()
    assert rig.disk.reached.wait(30)
    assert taken == []
    rig.disk.gate.set()
    waiting.join(30)
    assert taken == [True]
    assert rig.writer.flush(30)
    assert rig.on_disk(4)
    assert rig.writer.usage().dropped_pages == 0


def test_nobody_waits_for_a_writer_that_has_nothing_to_do(rig: WriterRig) -> None:
    assert not rig.writer.wait_for_progress(30)
    rig.put(1)
    assert not rig.writer.wait_for_progress(30)


def test_a_page_that_is_not_there_is_neither_queued_nor_counted(rig: WriterRig) -> None:
    assert not rig.offer(9)
    assert rig.writer.usage().dropped_pages == 0
    assert rig.writer.flush(30)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_the_hot_copy_survives_a_failed_write(rig: WriterRig, code: int) -> None:
    rig.put(1)
    rig.disk.fail["write"] = code
    assert rig.offer(1)
    assert rig.writer.flush(30)
    assert rig.writer.usage().failed_pages == 1
    found = rig.hot.get(rig.story.id(1))
    assert found is not None
    assert found.payload == expected_payload(rig.story.id(1), 4 * KIB)
    assert rig.hot.rooted([rig.story.id(1)])
    assert rig.cold.usage().state.startswith("failing: ")
    rig.disk.fail.clear()
    assert rig.offer(1)
    assert rig.writer.flush(30)
    assert rig.on_disk(1)
    assert rig.cold.usage().state == "ok"


def test_an_unexpected_error_does_not_end_the_thread(
    rig: WriterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_: object) -> bool:
        raise RuntimeError("a bug")

    rig.put(1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(rig.cold, "write", explode)
        patch.setattr(rig.cold, "settle", explode)
        assert rig.offer(1)
        assert rig.writer.flush(30)
    assert rig.writer.usage().failed_pages == 1
    assert rig.offer(2)
    assert rig.writer.flush(30)
    assert rig.on_disk(2)


def test_a_page_discarded_while_it_is_queued_is_not_written(rig: WriterRig) -> None:
    rig.put(1, 2)
    rig.block()
    assert rig.offer(1)
    assert rig.offer(2)
    assert rig.disk.reached.wait(30)
    rig.hot.discard([rig.story.id(2)])
    rig.disk.gate.set()
    assert rig.writer.flush(30)
    usage = rig.writer.usage()
    assert (usage.written_pages, usage.dropped_pages, usage.failed_pages) == (1, 0, 0)
    assert not rig.on_disk(2)


def test_a_fuller_version_that_comes_during_the_write_is_not_taken_for_written(
    rig: WriterRig,
) -> None:
    small, full = rig.story.page(1, held=8), rig.story.page(1)
    room = rig.hot.reserve(small.meta.nbytes)
    assert room
    rig.hot.put(small, room, dirty=True)
    rig.block()
    assert rig.offer(1)
    assert rig.disk.reached.wait(30)
    room = rig.hot.reserve(full.meta.nbytes)
    assert room
    rig.hot.put(full, room, dirty=True)
    assert not rig.offer(1)
    rig.disk.gate.set()
    assert rig.writer.flush(30)
    assert rig.offer(1)
    assert rig.writer.flush(30)
    info = rig.cold.info(rig.story.id(1))
    assert info is not None
    assert info.held == 16
    assert len(files_in(rig.cold.directory)) == 1


def test_pages_used_while_they_wait_keep_that_recency_on_the_disk(rig: WriterRig) -> None:
    """A chain is written root first, and touched before the writer comes to it."""
    rig.put(1, 2, 3)
    rig.block()
    for number in (1, 2, 3):
        assert rig.offer(number)
    assert rig.disk.reached.wait(30)
    chain = rig.story.ids(1, 2, 3)
    rig.hot.touch(chain)
    rig.cold.touch(chain)
    rig.disk.gate.set()
    assert rig.writer.flush(30)
    assert [entry.page for entry in rig.cold.entries()] == rig.story.ids(3, 2, 1)
    again = open_cold(rig.cold.directory)
    assert [entry.page for entry in again.entries()] == rig.story.ids(3, 2, 1)


@pytest.mark.parametrize("retain", [True, False])
def test_a_page_used_while_the_disk_refuses_it_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retain: bool
) -> None:
    """Its chain was marked as used between the look at its stamp and the disk's answer: the deep
    end, there already, was worth more for a moment, and the root must not stay away for that."""
    rig = WriterRig(tmp_path / "cold", 64 * KIB, retain=retain)
    deep = range(2, 9)
    rig.put(*deep)
    assert all(rig.offer(number) for number in deep)
    assert rig.writer.flush(30)
    rig.cold._index.limit_bytes = rig.cold.usage().nbytes + DIRECTORY_SLACK_BYTES
    rig.put(1)
    write, chain = rig.cold.write, rig.story.ids(1, *deep)

    def used_meanwhile(page: Page, stamp_ns: int, document: Mapping[str, object]) -> WriteResult:
        if used.is_set():
            return write(page, stamp_ns, document)
        used.set()
        now = rig.clock.now()
        for tier in (rig.hot, rig.cold):
            tier.touch(chain, now)
        result = write(page, stamp_ns, document)
        assert result == "refused"
        return result

    used = threading.Event()
    monkeypatch.setattr(rig.cold, "write", used_meanwhile)
    assert rig.offer(1)
    assert rig.writer.flush(30)
    assert rig.on_disk(1)
    assert not rig.on_disk(8)
    rig.close()


def test_a_page_superseded_while_it_waits_leaves_first(rig: WriterRig) -> None:
    rig.put(1, 2)
    # By its use alone it would leave last.
    rig.hot.touch(rig.story.ids(1))
    rig.block()
    for number in (1, 2):
        assert rig.offer(number)
    assert rig.disk.reached.wait(30)
    rig.hot.demote(rig.story.ids(1))
    rig.cold.demote(rig.story.ids(1))
    rig.disk.gate.set()
    assert rig.writer.flush(30)
    assert [entry.page for entry in rig.cold.entries()] == rig.story.ids(1, 2)


def test_stop_writes_what_is_pending_and_ends_the_thread(rig: WriterRig) -> None:
    rig.put(1, 2)
    assert rig.offer(1)
    assert rig.offer(2)
    assert rig.writer.stop(30)
    assert rig.on_disk(1)
    assert rig.on_disk(2)
    assert not rig.writer._thread.is_alive()
    assert not rig.offer(1)
    assert rig.writer.flush(30)


def test_stop_gives_up_on_a_disk_that_hangs_and_says_so(rig: WriterRig) -> None:
    rig.put(1, 2, 3)
    rig.block()
    for number in (1, 2, 3):
        assert rig.offer(number)
    assert rig.disk.reached.wait(30)
    assert not rig.writer.stop(0.01)
    assert rig.writer.usage().dropped_pages == 2
    assert not rig.writer.flush(0.01)
    info = rig.hot.info(rig.story.id(3))
    assert info is not None
    assert info.tier == "hot"


def test_offers_from_many_threads_never_exceed_the_queue(rig: WriterRig) -> None:
    rig.put(*range(1, 41))
    over: list[int] = []
    taken: list[bool] = []

    def work(numbers: range) -> None:
        for number in numbers:
            taken.append(rig.offer(number))
            pending = rig.writer.usage().pending_bytes
            if pending > 12 * KIB:
                over.append(pending)

    threads = [threading.Thread(target=work, args=(range(n, 41, 4),)) for n in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rig.writer.flush(30)
    usage = rig.writer.usage()
    assert over == []
    assert usage.peak_bytes <= 12 * KIB
    assert usage.written_pages == sum(taken)
    assert len(files_in(rig.cold.directory)) == usage.written_pages


def test_work_left_when_nobody_flushes_is_written_all_the_same(rig: WriterRig) -> None:
    rig.put(1)
    assert rig.offer(1)
    while rig.writer.wait_for_progress(30):
        pass
    assert rig.on_disk(1)
