"""The writer: bounded, in the background, and honest about what is durable."""

import errno
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from kit.storage import WriterRig, expected_payload, files_in
from omlx_cache_storage.cold.room import DIRECTORY_SLACK_BYTES
from omlx_cache_storage.page import Page, WriteResult

KIB = 1024


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
    assert info is not None
    assert info.tier == "pending"
    found = rig.hot.get(rig.story.id(1))
    assert found is not None
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
