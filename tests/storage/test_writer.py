"""The writer: bounded, in the background, and honest about what is durable. It takes up what had no
room in the queue, and leaves a disk alone that refuses page after page."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.remote.processes import until
from kit.storage import (
    SetTime,
    Story,
    WriterRig,
    commit,
    disk_usage,
    expected_payload,
    files_in,
    open_store,
    page_state,
    put,
    store_page,
)
from kit.units import KIB
from omlx_cache_storage import breaker, writer
from omlx_cache_storage.hot_page import PageState


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
    assert page_state(rig.hot, rig.story.id(1)) is PageState.DIRTY
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
    put(rig.hot, small, dirty=True)
    rig.block()
    assert rig.offer(1)
    assert rig.disk.reached.wait(30)
    put(rig.hot, full, dirty=True)
    assert not rig.offer(1)
    rig.disk.gate.set()
    assert rig.writer.flush(30)
    assert rig.offer(1)
    assert rig.writer.flush(30)
    info = rig.cold.info(rig.story.id(1))
    assert info.held == 16
    assert len(files_in(rig.cold.directory)) == 1


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


def test_an_idle_writer_keeps_the_free_space_of_a_disk_that_others_fill(
    rig: WriterRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig.put(1, 2, 3)
    for number in (1, 2, 3):
        assert rig.offer(number)
    assert rig.writer.flush(30)
    size = disk_usage(rig.cold.directory) + 64 * KIB
    monkeypatch.setattr(rig.disk, "free_bytes", lambda path: size - disk_usage(rig.cold.directory))
    rig.cold.evictor.min_free = 64 * KIB + 1
    for name in ("IDLE_SECONDS", "FREE_SECONDS"):
        monkeypatch.setattr(writer, name, 0.01)

    # Ends the wait that began with the longer time; more of them would keep the writer busy.
    assert rig.writer.flush(30)
    until(lambda: "less than min_free_bytes" in caplog.text)
    until(lambda: rig.cold.usage().pages == 2)
    size += 64 * KIB
    until(lambda: "has room again" in caplog.text)
    assert len(caplog.records) == 2
    assert rig.cold.usage().pages == 2


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
