"""The hot tier gives back while memory is short, writes first what must not be lost, and grows
again slowly."""

from itertools import pairwise
from pathlib import Path

from kit.storage import FaultyDisk, Seconds, Story, commit, open_store
from kit.units import KIB
from omlx_cache import BlockStore
from omlx_cache.upkeep.memory import GROW_SECONDS, STEPS, Level, MemoryFigures, Relief

HOT = 1024 * KIB
STEP = HOT // STEPS
PAGE = 64 * KIB
WARN, CRITICAL, NORMAL = (
    MemoryFigures(verdict=level) for level in (Level.WARN, Level.CRITICAL, Level.NORMAL)
)


def _full(directory: Path, disk: FaultyDisk | None = None, **options: object) -> BlockStore:
    """A store whose hot tier holds 15 pages of 64 KiB, on the disk but with `back`."""
    store = open_store(directory, disk, **{"queue_bytes": HOT, "hot_bytes": HOT, **options})
    commit(store, Story(nbytes=PAGE), *range(1, 16))
    if "write_policy" not in options:
        assert store.flush(30)
    return store


def _used(store: BlockStore) -> int:
    return store.stats().hot.nbytes


def test_at_warn_it_goes_down_by_steps_and_the_last_step_stays(tmp_path: Path) -> None:
    with _full(tmp_path) as store:
        relief = Relief(store, 1)
        seen = [relief.step(WARN) and _used(store) for _ in range(STEPS - 1)]
        assert seen == sorted(seen, reverse=True)
        assert all(before - after <= 2 * STEP for before, after in pairwise(seen))
        assert STEP // 2 <= _used(store) <= STEP
        assert relief.step(WARN) == 0
        assert relief.usage.level == "warn"
        assert relief.usage.times >= 6
        assert relief.usage.given_back_bytes == 15 * PAGE - _used(store)
        store.hot.check_integrity()


def test_at_critical_everything_goes_at_once_and_nothing_comes_back_at_once(tmp_path: Path) -> None:
    with _full(tmp_path) as store:
        relief = Relief(store, 1)
        assert relief.step(CRITICAL) == 15 * PAGE
        assert _used(store) == 0
        assert commit(store, Story("more", nbytes=PAGE), 1) == [False]
        assert store.stats().hot.limit_bytes == HOT, "the ceiling is what was granted"


def test_it_grows_again_step_by_step_when_memory_was_plentiful_for_a_while(tmp_path: Path) -> None:
    clock = Seconds()
    with _full(tmp_path) as store:
        relief = Relief(store, 1, clock)
        relief.step(CRITICAL)
        allowed = []
        for _ in range(3 * STEPS):
            clock.now += GROW_SECONDS / 2
            relief.step(NORMAL)
            allowed.append(store.stats().hot.allowed_bytes)
        assert allowed[0] == 0
        assert allowed[1] == STEP
        assert max(b - a for a, b in pairwise(allowed)) == STEP
        assert allowed[-1] == HOT
        assert commit(store, Story("more", nbytes=PAGE), 1) == [True]


def test_it_does_not_grow_into_the_next_shortage(tmp_path: Path) -> None:
    clock = Seconds()
    with _full(tmp_path) as store:
        relief = Relief(store, 100, clock)
        relief.step(MemoryFigures(0))
        for _ in range(10):
            clock.now += GROW_SECONDS
            relief.step(MemoryFigures(100 + 2 * STEP))
        assert store.stats().hot.allowed_bytes == 0


def test_pages_that_only_memory_has_are_written_and_then_given_back(tmp_path: Path) -> None:
    with _full(tmp_path, write_policy="lazy") as store:
        story = Story(nbytes=PAGE)
        relief = Relief(store, 1)
        assert relief.step(CRITICAL) < 15 * PAGE
        assert store.flush(30)
        relief.step(CRITICAL)
        assert _used(store) == 0
        assert all(store.find(page) is not None for page in story.ids(*range(1, 16)))
        store.hot.check_integrity()


def test_pages_that_a_failing_disk_refuses_are_given_up(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with _full(tmp_path, disk, write_policy="lazy") as store:
        disk.fail["write"] = 5
        assert not store.flush(30)
        Relief(store, 1).step(CRITICAL)
        assert _used(store) == 0
        disk.fail.clear()
