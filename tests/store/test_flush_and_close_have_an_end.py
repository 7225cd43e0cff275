"""A flush without a deadline does not wait for as long as others store; a closed store is empty."""

import threading
from pathlib import Path

import pytest

from kit.children import kill_9, program, said
from kit.storage import FaultyDisk, HandClock, Story, commit, files_in, open_store

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


def test_a_page_that_was_admitted_before_the_close_does_not_stay(tmp_path: Path) -> None:
    story = Story()
    with open_store(tmp_path) as store:
        commit(store, story, 1)
        made, read = store.admit(story.nbytes), store.reserve(story.nbytes)
        assert made
        assert read
    assert not store.put(story.page(2), made)
    assert not store.put(story.page(3), read)
    assert not store.admit(story.nbytes)
    assert not store.reserve(story.nbytes)
    assert {held.id for held in store.hot.entries()} == set()
    assert store.hot.usage().nbytes == 0


def test_a_close_by_two_threads_has_one_deadline_for_both(tmp_path: Path) -> None:
    disk = FaultyDisk()
    store = open_store(tmp_path, disk)
    disk.gate.clear()
    disk.reached.clear()
    commit(store, Story(), 1)
    assert disk.reached.wait(30)
    closed: list[bool] = []
    closing = [
        threading.Thread(target=lambda: closed.append(store.close(0.3)), daemon=True)
        for _ in range(2)
    ]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join(60)
    # One that comes when all is done has nothing to wait for.
    assert len(closed) == 2
    assert False in closed
    disk.gate.set()


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
