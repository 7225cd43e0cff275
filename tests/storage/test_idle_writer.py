"""A writer with nothing to do takes up what had no room in the queue, and a flush has an end."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.storage import FaultyDisk, Story, WriterRig, commit, files_in, open_store, store_page
from omlx_cache_storage import writer
from omlx_cache_storage.cold.disk import StrPath

KIB = 1024


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[WriterRig]:
    rig = WriterRig(tmp_path / "cold", 12 * KIB, takes_up=True)
    yield rig
    rig.close()


class SinglePages(FaultyDisk):
    """Publishes one page for each `permits.release()`."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = threading.Semaphore(0)

    def publish(self, temporary: StrPath, final: StrPath) -> None:
        if os.fspath(final).endswith(".safetensors"):
            self.permits.acquire(timeout=60)
        super().publish(temporary, final)


def test_an_idle_writer_takes_up_what_had_no_room_in_the_queue(rig: WriterRig) -> None:
    rig.put(*range(1, 9))
    rig.block()
    assert [rig.offer(number) for number in range(1, 9)] == [True] * 3 + [False] * 5
    rig.disk.gate.set()
    for _ in range(3):
        # Three pages fit into the queue; a flush ends after the writer took up the next three.
        assert rig.writer.flush(30)
    assert all(rig.on_disk(number) for number in range(1, 9))
    assert rig.hot.dirty() == []
    usage = rig.writer.usage()
    assert (usage.written_pages, usage.dropped_pages) == (8, 0)
    assert usage.peak_bytes <= 12 * KIB


def test_a_disk_that_fails_is_not_asked_again_in_a_loop_but_at_leisure(
    rig: WriterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.put(1, 2)
    rig.disk.fail["write"] = errno.ENOSPC
    before = rig.disk.calls["write"]
    assert rig.offer(1)
    assert rig.writer.flush(30)
    assert rig.writer.flush(30)
    assert rig.disk.calls["write"] == before + 1
    rig.disk.fail.clear()
    monkeypatch.setattr(writer, "IDLE_SECONDS", 0.01)
    rig.disk.reached.clear()
    # Ends the wait that began with the longer time.
    assert rig.writer.flush(30)
    assert rig.disk.reached.wait(30)
    while rig.writer.wait_for_progress(30):
        pass
    assert rig.writer.flush(30)
    assert rig.on_disk(1)
    assert rig.on_disk(2)


def test_a_flush_does_not_wait_for_a_page_that_was_offered_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SinglePages()
    rig = WriterRig(tmp_path / "cold", 12 * KIB, disk=disk)
    rig.put(1, 2)
    assert rig.offer(1)
    assert rig.disk.reached.wait(30)
    wait = rig.writer._wait

    def offer_another_and_wait(done: Callable[[], bool], timeout: float | None) -> None:
        assert rig.offer(2)
        disk.permits.release()
        wait(done, timeout)

    with monkeypatch.context() as patch:
        patch.setattr(rig.writer, "_wait", offer_another_and_wait)
        assert rig.writer.flush(10)
    assert rig.on_disk(1)
    assert not rig.on_disk(2)
    disk.permits.release()
    assert rig.writer.flush(30)
    assert rig.on_disk(2)
    rig.close()


def test_a_flush_of_a_store_ends_while_others_go_on_storing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each barrier finds another dirty page, which is not this flush's."""
    story, other = Story(nbytes=16 * KIB), Story("other", nbytes=16 * KIB)
    with open_store(tmp_path, write_policy="lazy") as store:
        commit(store, story, 1, 2)
        assert store.writer is not None
        flush, numbers = store.writer.flush, iter(range(1, 60))

        def store_another_and_flush(timeout: float | None) -> bool:
            assert store_page(store, other.page(next(numbers)))
            return flush(timeout)

        with monkeypatch.context() as patch:
            patch.setattr(store.writer, "flush", store_another_and_flush)
            assert store.flush(30)
        assert store.hot.dirty() == other.ids(1)
        assert len(files_in(tmp_path)) == 2


def test_a_flush_waits_for_what_the_idle_writer_takes_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page is queued between the barrier and the look at what is left."""
    story = Story(nbytes=16 * KIB)
    disk = SinglePages()
    with open_store(tmp_path, disk, queue_bytes=16 * KIB) as store:
        assert commit(store, story, 1, 2) == [True, True]
        assert store.writer is not None
        assert store.hot.rooted([story.id(2)])
        flush = store.writer.flush

        def flush_and_allow_another(timeout: float | None) -> bool:
            disk.permits.release()
            done = flush(timeout)
            if store.hot.rooted([story.id(2)]):
                store.writer.offer([story.id(2)])  # type: ignore[union-attr]
            return done

        with monkeypatch.context() as patch:
            patch.setattr(store.writer, "flush", flush_and_allow_another)
            assert store.flush(30)
        assert len(files_in(tmp_path)) == 2
        disk.permits.release()
