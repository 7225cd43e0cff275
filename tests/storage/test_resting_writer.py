"""A disk that refuses page after page is not asked for each of them."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.storage import FaultyDisk, SetTime, Story, WriterRig, commit, files_in, open_store
from omlx_cache_storage import breaker

KIB = 1024
MANY = range(1, 61)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> SetTime:
    return SetTime(monkeypatch)


@pytest.fixture
def rig(tmp_path: Path, time: SetTime) -> Iterator[WriterRig]:
    rig = WriterRig(tmp_path / "cold", 256 * KIB)
    yield rig
    rig.close()


def _offer(rig: WriterRig, *numbers: int) -> None:
    """Offer pages while a first write is under way, so that all are queued."""
    for number in numbers:
        assert rig.offer(number)
    while rig.writer.wait_for_progress(30):
        pass


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EMFILE])
def test_after_a_few_failures_the_rest_of_the_queue_is_put_off_and_stays_dirty(
    rig: WriterRig, time: SetTime, code: int
) -> None:
    rig.put(*MANY)
    before = rig.disk.calls["write"]
    rig.disk.fail["write"] = code
    _offer(rig, *MANY)
    usage = rig.writer.usage()
    assert (usage.failed_pages, usage.dropped_pages) == (breaker.FAILURES, 0)
    assert rig.disk.calls["write"] - before == breaker.FAILURES
    assert len(rig.hot.dirty()) == 60
    time.pass_by(breaker.FIRST_SECONDS)
    _offer(rig, *MANY)
    assert rig.writer.usage().failed_pages == breaker.FAILURES + 1, "one try, and a longer pause"
    rig.disk.fail.clear()
    time.pass_by(breaker.FIRST_SECONDS)
    _offer(rig, 1)
    assert not rig.on_disk(1)
    time.pass_by(breaker.FIRST_SECONDS)
    _offer(rig, *MANY)
    assert all(rig.on_disk(number) for number in MANY)
    assert rig.cold.usage().state == "ok"


def test_a_flush_asks_a_resting_disk_once_and_tells_the_truth(
    tmp_path: Path, time: SetTime
) -> None:
    disk, story = FaultyDisk(), Story()
    with open_store(tmp_path, disk) as store:
        disk.fail["write"] = errno.EROFS
        commit(store, story, *range(1, 41))
        assert not store.flush(30)
        calls = disk.calls["write"]
        for _ in range(5):
            assert not store.flush(30)
        assert disk.calls["write"] - calls <= 10 * breaker.FAILURES
        disk.fail.clear()
        assert store.flush(30), "no time has passed"
        assert len(files_in(tmp_path)) == 40
