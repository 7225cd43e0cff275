"""A flush without a deadline does not wait for as long as others store; a closed store is empty."""

import threading
from pathlib import Path

import pytest

from kit.remote.processes import until
from kit.storage import FaultyDisk, HandClock, Story, commit, files_in, open_store
from kit.units import KIB


def test_a_flush_that_never_gets_a_place_in_the_queue_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story()
    # Time stands still: nothing falls due before the flush.
    with open_store(tmp_path, clock=HandClock(), write_policy="lazy") as store:
        commit(store, story, 1, 2)
        flushed: list[bool] = []
        flushing = threading.Thread(target=lambda: flushed.append(store.flush(None)), daemon=True)
        with monkeypatch.context() as patch:
            # What a flush sees when others fill the queue after each of its barriers.
            patch.setattr("omlx_cache_storage.hot.fits", lambda *_: False)
            flushing.start()
            flushing.join(30)
            assert flushed == [False]
        assert store.flush(30)
        assert len(files_in(tmp_path)) == 2


def test_what_a_full_queue_dropped_is_on_the_disk_after_an_idle_moment(tmp_path: Path) -> None:
    """Nobody flushes: the writer finds by itself what the queue had no room for."""
    disk, story = FaultyDisk(), Story(nbytes=16 * KIB)
    with open_store(tmp_path, disk, queue_bytes=48 * KIB) as store:
        disk.gate.clear()
        commit(store, story, *range(1, 13))
        assert store.hot.dirty()
        disk.gate.set()
        until(lambda: len(files_in(tmp_path)) == 12)
