"""A schedule decides which thread runs, finds what depends on it, and repeats it."""

import ast
import time

import pytest

from kit import locks
from kit.locks import Lock
from kit.scheduler import Deadlock, Scheduler, Script, Seeded, explore, explore_all, run


def lock(scheduler: Scheduler, name: str = "scheduled") -> Lock:
    return Lock(name, scheduler.mutex(name))


def lost_update(scheduler: Scheduler) -> None:
    """Two threads that read under a lock, and write under it later."""
    guard, number = lock(scheduler), [0]

    def add() -> None:
        with guard:
            before = number[0]
        with guard:
            number[0] = before + 1

    scheduler.together(add, add)
    assert number == [2]


def test_every_schedule_with_one_more_switch_finds_a_lost_update_and_the_note_repeats_it() -> None:
    run(lost_update, Script())
    with pytest.raises(AssertionError) as found:
        explore_all(lost_update, switches=1)
    [note] = found.value.__notes__
    switches = ast.literal_eval(note.removeprefix("schedule: "))
    with pytest.raises(AssertionError):
        run(lost_update, Script(switches))


def test_some_seeds_find_a_lost_update() -> None:
    with pytest.raises(AssertionError):
        explore(lost_update, range(20))


def test_a_seed_gives_the_same_schedule_each_time() -> None:
    def scenario(scheduler: Scheduler) -> None:
        guard = lock(scheduler)

        def work() -> None:
            for _ in range(5):
                with guard:
                    time.sleep(0.1)

        scheduler.together(work, work, work)

    taken = [run(scenario, Seeded(seed, 60)).switches for seed in (1, 1, 2)]
    assert taken[0] == taken[1] != taken[2]


def test_a_deadlock_ends_all_threads_and_shows_where_each_waits() -> None:
    def scenario(scheduler: Scheduler) -> None:
        first = scheduler.mutex("first")
        second = scheduler.mutex("second")

        def take(one: locks.Mutex, two: locks.Mutex) -> None:
            one.acquire()
            two.acquire()
            two.release()
            one.release()

        scheduler.together(lambda: take(first, second), lambda: take(second, first))

    with pytest.raises(Deadlock, match=r"(?s)deadlock.*two.acquire.*two.acquire"):
        explore(scenario, range(30))


def test_a_timeout_passes_when_nobody_else_can_run_and_takes_no_time() -> None:
    def scenario(scheduler: Scheduler) -> None:
        changed = scheduler.condition(lock(scheduler))
        came: list[str] = []

        def wait(name: str, seconds: float) -> None:
            with changed:
                changed.wait_for(lambda: False, seconds)
                came.append(name)

        def work() -> None:
            for _ in range(50):
                with changed:
                    came.append("work")

        began = time.monotonic()
        scheduler.together(lambda: wait("long", 3600), lambda: wait("short", 60), work)
        assert came == ["work"] * 50 + ["short", "long"]
        assert 3600 <= time.monotonic() - began < 3700

    began = time.monotonic()
    explore(scenario, range(10))
    assert time.monotonic() - began < 60


def test_what_a_thread_raises_is_raised() -> None:
    def fail() -> None:
        raise ValueError("of a thread")

    with pytest.raises(ValueError, match="of a thread"):
        run(lambda scheduler: scheduler.together(fail, fail), Script())
