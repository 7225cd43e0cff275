"""The writer: bounded, in the background, and honest about what is durable. It takes up what had no
room in the queue, and leaves a disk alone that refuses page after page."""

import errno
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from kit.storage import (
    SetTime,
    Story,
    WriterRig,
    commit,
    expected_payload,
    files_in,
    open_store,
    store_page,
)
from kit.storage.faults import FaultyDisk, HandClock
from omlx_cache_storage import breaker, writer
from omlx_cache_storage.cold.room import DIRECTORY_SLACK_BYTES
from omlx_cache_storage.eviction.keep import Keep
from omlx_cache_storage.page import Page, WriteResult

KIB = 1024
PAGE = 64 * KIB


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[WriterRig]:
    rig = WriterRig(tmp_path / "cold", 12 * KIB)
    yield rig
    rig.close()


def test_pending_pages_are_readable_and_cannot_be_evicted(rig: WriterRig) -> None:
    rig.put(1)
    rig.block()
    assert rig.offer(1)
    assert rig.disk.reached.wait(30)
    assert not rig.hot.reserve(256 * KIB)
    info = rig.hot.info(rig.story.id(1))
    assert info.tier == "pending"
    found = rig.hot.get(rig.story.id(1))
    assert found.payload == expected_payload(rig.story.id(1), 4 * KIB)
    rig.disk.gate.set()
    assert rig.writer.flush(30)
    assert rig.hot.reserve(256 * KIB)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_the_hot_copy_survives_a_failed_write(rig: WriterRig, code: int) -> None:
    rig.put(1)
    rig.disk.fail["write"] = code
    assert rig.offer(1)
    assert rig.writer.flush(30)
    assert rig.writer.usage().failed_pages == 1
    found = rig.hot.get(rig.story.id(1))
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
    assert info.held == 16
    assert len(files_in(rig.cold.directory)) == 1


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


@pytest.fixture
def eager(tmp_path: Path) -> Iterator[WriterRig]:
    eager = WriterRig(tmp_path / "cold", 12 * KIB, takes_up=True)
    yield eager
    eager.close()


def test_a_disk_that_fails_is_not_asked_again_in_a_loop_but_at_leisure(
    eager: WriterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager.put(1, 2)
    eager.disk.fail["write"] = errno.ENOSPC
    before = eager.disk.calls["write"]
    assert eager.offer(1)
    assert eager.writer.flush(30)
    assert eager.writer.flush(30)
    assert eager.disk.calls["write"] == before + 1
    eager.disk.fail.clear()
    monkeypatch.setattr(writer, "IDLE_SECONDS", 0.01)
    eager.disk.reached.clear()
    # Ends the wait that began with the longer time.
    assert eager.writer.flush(30)
    assert eager.disk.reached.wait(30)
    while eager.writer.wait_for_progress(30):
        pass
    assert eager.writer.flush(30)
    assert eager.on_disk(1)
    assert eager.on_disk(2)


def test_a_flush_of_a_store_ends_while_others_go_on_storing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each barrier finds another dirty page, which is not this flush's."""
    story, other = Story(nbytes=16 * KIB), Story("other", nbytes=16 * KIB)
    with open_store(tmp_path, write_policy="lazy") as store:
        commit(store, story, 1, 2)
        flush, numbers = store.writer.flush, iter(range(1, 60))

        def store_another_and_flush(timeout: float | None) -> bool:
            assert store_page(store, other.page(next(numbers)))
            return flush(timeout)

        with monkeypatch.context() as patch:
            patch.setattr(store.writer, "flush", store_another_and_flush)
            assert store.flush(30)
        assert store.hot.dirty() == other.ids(1)
        assert len(files_in(tmp_path)) == 2


MANY = range(1, 61)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> SetTime:
    return SetTime(monkeypatch)


@pytest.fixture
def roomy(tmp_path: Path, time: SetTime) -> Iterator[WriterRig]:
    roomy = WriterRig(tmp_path / "cold", 256 * KIB)
    yield roomy
    roomy.close()


def _offer(roomy: WriterRig, *numbers: int) -> None:
    """Offer pages while a first write is under way, so that all are queued."""
    for number in numbers:
        assert roomy.offer(number)
    while roomy.writer.wait_for_progress(30):
        pass


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EMFILE])
def test_after_a_few_failures_the_rest_of_the_queue_is_put_off_and_stays_dirty(
    roomy: WriterRig, time: SetTime, code: int
) -> None:
    roomy.put(*MANY)
    before = roomy.disk.calls["write"]
    roomy.disk.fail["write"] = code
    _offer(roomy, *MANY)
    usage = roomy.writer.usage()
    assert (usage.failed_pages, usage.dropped_pages) == (breaker.FAILURES, 0)
    assert roomy.disk.calls["write"] - before == breaker.FAILURES
    assert len(roomy.hot.dirty()) == 60
    time.pass_by(breaker.FIRST_SECONDS)
    _offer(roomy, *MANY)
    assert roomy.writer.usage().failed_pages == breaker.FAILURES + 1, "one try, and a longer pause"
    roomy.disk.fail.clear()
    time.pass_by(breaker.FIRST_SECONDS)
    _offer(roomy, 1)
    assert not roomy.on_disk(1)
    time.pass_by(breaker.FIRST_SECONDS)
    _offer(roomy, *MANY)
    assert all(roomy.on_disk(number) for number in MANY)
    assert roomy.cold.usage().state == "ok"


@pytest.mark.parametrize("write_policy", ["through", "lazy"])
def test_after_a_failure_of_the_disk_pages_pass_again_though_memory_stays_young(
    tmp_path: Path, write_policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = property(lambda _: 50 * 10**9, lambda *_: None)
    monkeypatch.setattr(Keep, "patience_ns", patience, raising=False)
    disk, clock = FaultyDisk(), HandClock()
    sizes = {"hot_bytes": 16 * PAGE, "queue_bytes": 16 * PAGE, "cold_bytes": "64MiB"}
    with open_store(tmp_path, disk=disk, clock=clock, write_policy=write_policy, **sizes) as store:
        ours, theirs = Story("ours", nbytes=PAGE), Story("theirs", nbytes=PAGE)
        commit(store, ours, *range(1, 17))
        assert store.flush()
        disk.fail["write"] = errno.EIO
        assert commit(store, theirs, 1) == [True]
        store.wait_for_writer(5)
        assert commit(store, theirs, 2) == [False]
        disk.fail.clear()
        for _ in range(3):
            clock.pass_by(40)
            store.touch(ours.ids(*range(1, 17)))
        # As the writer does when it is idle.
        ended = store.writes_ended
        store.writer.tick()
        store.wait_for_writer(5, ended)
        assert commit(store, theirs, 2) == [True]
        assert store.flush()
        assert all(page in store.cold for page in theirs.ids(1, 2))
        store.hot.check_integrity()
