"""The upkeep thread has what was given back go to the system, and ends with the last store."""

import threading
from pathlib import Path

import mlx.core as mx
import pytest

from kit.storage import Story, commit_to_disk, open_store
from kit.units import KIB
from omlx_cache.upkeep.memory import Level, MemoryFigures
from omlx_cache.upkeep.thread import UpkeepThread


@pytest.mark.parametrize(("level", "cleared"), [(Level.NORMAL, 0), (Level.WARN, 1)])
def test_mlx_gives_its_cache_back_when_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: Level, cleared: int
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(mx, "clear_cache", lambda: calls.append(threading.current_thread().name))
    with open_store(tmp_path) as store:
        store._relief.wanted_bytes = 1
        commit_to_disk(store, Story(nbytes=64 * KIB), *range(1, 10))
        upkeep = UpkeepThread(lambda: MemoryFigures(verdict=level))
        upkeep._look_after([store._parts])
        assert len(calls) == cleared
        assert (store.stats().memory.given_back_bytes > 0) == bool(cleared)


def test_the_thread_ends_with_the_last_store_and_begins_anew(tmp_path: Path) -> None:
    upkeep = UpkeepThread(MemoryFigures)
    with open_store(tmp_path) as store:
        for _ in range(3):
            upkeep.keep(store._parts)
            thread = upkeep._thread
            upkeep.keep(store._parts)
            assert upkeep._thread is thread
            upkeep.forget(store._parts)
            thread.join(30)
            assert upkeep._thread is None


def test_stores_that_were_lost_are_closed_within_one_deadline_at_the_end() -> None:
    granted: list[float] = []

    class Slow:
        def close(self, timeout: float) -> bool:
            granted.append(timeout)
            threading.Event().wait(min(timeout, 0.2))
            return False

    upkeep = UpkeepThread(MemoryFigures)
    upkeep._stores = {Slow(), Slow(), Slow()}
    upkeep.close_lost(0.2)
    assert granted[0] <= 0.2
    assert granted[1:] == [0.0, 0.0]
