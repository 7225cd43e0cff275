"""A writer with nothing to do takes up what had no room in the queue, and a flush has an end."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.storage import Story, WriterRig, commit, files_in, open_store, store_page
from omlx_cache_storage import writer

KIB = 1024


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[WriterRig]:
    rig = WriterRig(tmp_path / "cold", 12 * KIB, takes_up=True)
    yield rig
    rig.close()


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
