"""A flush without a deadline does not wait for as long as others store; a closed store is empty."""

import threading
from pathlib import Path

import pytest

from kit.children import kill_9, program, said
from kit.storage import HandClock, Story, commit, files_in, open_store

KIB = 1024


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
            patch.setattr(store.writer, "has_room", lambda nbytes: False)
            flushing.start()
            flushing.join(30)
            assert flushed == [False]
        assert store.flush(30)
        assert len(files_in(tmp_path)) == 2


CHILD = """
import sys
from pathlib import Path
from kit.storage import FaultyDisk, HandClock, Story, commit, open_store

disk, story = FaultyDisk(), Story(nbytes=16 * 1024)
store = open_store(Path(sys.argv[1]), disk, queue_bytes=48 * 1024)
disk.gate.clear()
taken = commit(store, story, *range(1, 13))
print(len(store.hot.dirty()), flush=True)
disk.gate.set()
sys.stdin.read()
"""


def test_what_a_full_queue_dropped_is_on_the_disk_after_an_idle_moment_and_kill_9(
    tmp_path: Path,
) -> None:
    """Nobody flushes: the writer finds by itself what the queue had no room for."""
    with program(CHILD, tmp_path) as child:
        assert int(said(child)) > 0
        written = threading.Event()

        def watch() -> None:
            while len(files_in(tmp_path)) < 12 and not written.wait(0.05):
                pass

        watching = threading.Thread(target=watch)
        watching.start()
        watching.join(60)
        written.set()
        kill_9(child)
    story = Story(nbytes=16 * KIB)
    with open_store(tmp_path) as store:
        assert all(store.find(story.id(number)) is not None for number in range(1, 13))
