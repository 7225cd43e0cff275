"""Threads that hand over to each other where a schedule says so, and nowhere else.

Inside a `Scheduler` one thread runs at a time. It may hand over where it takes or releases a lock
of this product, waits, sleeps, starts or joins a thread; a `Chooser` decides to whom. Time stands
still while anybody can run, and then goes on to the first timeout. So a schedule is the list of
its switches, and the same list gives the same run. Files are real.
"""

import contextlib
import gc
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from random import Random
from typing import Any, Protocol
from unittest.mock import patch

from kit import locks

MOST_STEPS = 200_000
"""After so many steps a schedule that goes on counts as one without an end."""
LEAVES = (
    "recency",
    "departures",
    "stats",
    "histograms",
    "files",
    "deletion",
    "in_flight",
)
"""Modules whose locks guard a few numbers each: no thread hands over there."""
_TICK = 1e-6
_start, _join, _is_alive = (
    threading.Thread.start,
    threading.Thread.join,
    threading.Thread.is_alive,
)
_CLOCKS = {"monotonic": 1, "time": 1, "monotonic_ns": 10**9, "time_ns": 10**9}
Switches = dict[int, str]
"""By the number of the step, which thread goes on there."""


class Deadlock(AssertionError):
    """No thread can go on, or all of them for ever."""


class Abandoned(BaseException):
    """Ends the threads of a schedule that failed."""


def _always() -> bool:
    return True


class Task:
    """A thread of a schedule: `ready` says whether it can go on, `wakes` when it does anyway."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.gate = locks.make_lock()
        self.gate.acquire()
        self.ready: Callable[[], bool] = _always
        self.wakes: float | None = None
        self.ended = False

    def can_run(self, now: float) -> bool:
        late = self.wakes is not None and self.wakes <= now
        return not self.ended and (late or self.ready())


class Chooser(Protocol):
    """Decides who goes on: `task` itself, unless it has to wait, or one of `others`."""

    def __call__(self, step: int, task: Task | None, others: list[Task]) -> Task: ...


class Seeded:
    """Hands over at a few random steps of the first `steps`, and to anybody where one waits."""

    def __init__(self, seed: int, steps: int, switches: int = 3) -> None:
        self._random = Random(seed)
        count = self._random.randint(1, switches)
        self._at = {self._random.randrange(1, max(2, steps)) for _ in range(count)}

    def __call__(self, step: int, task: Task | None, others: list[Task]) -> Task:
        if task is not None and (step not in self._at or not others):
            return task
        return self._random.choice(others)


class Script:
    """Hands over where it is told to, and else only where a thread waits, to the next one."""

    def __init__(self, switches: Switches | None = None) -> None:
        self._switches = switches or {}

    def __call__(self, step: int, task: Task | None, others: list[Task]) -> Task:
        named = [one for one in others if one.name == self._switches.get(step)]
        return named[0] if named else task or others[0]


class Scheduler:
    """Runs the threads that are started inside it, and the one that entered it, one at a time.

    Only the thread that runs mutates it. While `exploring`, `choose` decides, `steps` counts, and
    `switches` and `options` have what was chosen and what else could have been; before and after
    that a thread goes on until it has to wait. `now` is the time that has passed.
    """

    def __init__(self, choose: Chooser) -> None:
        self.exploring = False
        self.steps = 0
        self.switches: Switches = {}
        self.options: list[tuple[int, list[str]]] = []
        self.now = 0.0
        self._choose = choose
        self._began = time.time()
        self._points = 0
        self._tasks: list[Task] = []
        self._running: dict[int, Task] = {}
        self._of: dict[threading.Thread, Task] = {}
        self._errors: list[BaseException] = []
        self._deciding = False
        self._broken = False

    def together(self, *functions: Callable[[], object]) -> None:
        """Run functions on threads of their own, in the order that the schedule makes of them."""
        threads = [threading.Thread(target=f, name=f"{n}") for n, f in enumerate(functions)]
        self.exploring = True
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.exploring = False
        self._raise()

    def _raise(self) -> None:
        if self._errors:
            raise self._errors[0]

    # Handing over.

    def point(self) -> None:
        """Let another thread go on here, if the schedule says so."""
        task = self._task()
        if task is not None and not self._deciding:
            self._switch(task, waits=False)

    def wait(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Let others go on until something is so; False at the timeout."""
        task = self._task()
        assert task is not None, "only a thread of the schedule can wait here"
        if not ready():
            task.ready = ready
            task.wakes = None if timeout is None else self.now + max(0.0, timeout)
            self._switch(task, waits=True)
            task.ready, task.wakes = _always, None
        return ready()

    def _sleep(self, seconds: float) -> None:
        """Let others go on first, if any can."""
        task, until = self._running[threading.get_ident()], self.now + seconds
        self._switch(task, waits=True)
        self.now = max(self.now, until)

    def _clock(self) -> float:
        """Return the time: a little later each time it is asked for."""
        self.now += _TICK
        return self._began + self.now

    def _task(self) -> Task | None:
        return self._running.get(threading.get_ident())

    def _switch(self, task: Task, *, waits: bool) -> None:
        if not self._broken:
            following = self._next(task, waits=waits)
            if following is not task:
                following.gate.release()
                task.gate.acquire()
        if self._broken:
            raise Abandoned

    def _next(self, task: Task, *, waits: bool) -> Task:
        self._deciding = True
        self._points += 1
        self.steps += self.exploring
        at = self._tasks.index(task)
        around = self._tasks[at + 1 :] + self._tasks[:at]
        others = [one for one in around if one.can_run(self.now)]
        alone = not others and task.can_run(self.now)
        here = task if alone or not waits else None
        if self._points > MOST_STEPS:
            raise self._stuck("no end")
        if here is None and not others:
            following = self._first_timeout()
        elif self.exploring:
            following = self._choose(self.steps, here, others)
            self.options.append((self.steps, [one.name for one in others if one is not following]))
            if following is not here:
                self.switches[self.steps] = following.name
        else:
            following = here or others[0]
        self._deciding = False
        return following

    def _first_timeout(self) -> Task:
        waiting = [(one.wakes, i) for i, one in enumerate(self._tasks) if one.wakes is not None]
        if not waiting:
            raise self._stuck("deadlock")
        wakes, first = min(waiting)
        self.now = max(self.now, wakes)
        return self._tasks[first]

    def _stuck(self, why: str) -> Deadlock:
        """End all threads, and return what each was waiting for."""
        frames = sys._current_frames()
        stacks = [
            f"{task.name}:\n{''.join(traceback.format_stack(frames[ident])[-8:])}"
            for ident, task in self._running.items()
            if ident in frames and not task.ended
        ]
        error = Deadlock("\n".join([why, *stacks]))
        self._errors.append(error)
        self._abandon()
        return error

    def _abandon(self) -> None:
        mine, waiting = self._task(), [] if self._broken else self._tasks
        self._broken = True
        for task in waiting:
            if task is not mine and not task.ended:
                task.gate.release()

    # Threads.

    def _enter(self, name: str, thread: threading.Thread) -> Task:
        names = {task.name for task in self._tasks}
        task = Task(name if name not in names else f"{name} {len(names)}")
        self._tasks.append(task)
        self._of[thread] = task
        return task

    def _start(self, thread: threading.Thread) -> None:
        """Start a thread, which waits for its turn."""
        run, task = thread.run, self._enter(thread.name, thread)

        def turn() -> None:
            task.gate.acquire()
            self._running[threading.get_ident()] = task
            try:
                if not self._broken:
                    run()
            except BaseException as error:
                if not isinstance(error, Abandoned):
                    self._errors.append(error)
            finally:
                task.ended = True
                if not self._broken:
                    with contextlib.suppress(Deadlock):
                        self._next(task, waits=True).gate.release()
                self._running.pop(threading.get_ident(), None)

        thread.run = turn  # type: ignore[method-assign]
        _start(thread)
        self.point()

    def _join(self, thread: threading.Thread, timeout: float | None = None) -> None:
        task = self._of.get(thread)
        if task is None or self.wait(lambda: task.ended, timeout):
            _join(thread)

    def _is_alive(self, thread: threading.Thread) -> bool:
        return not self._of[thread].ended if thread in self._of else _is_alive(thread)

    # What takes the place of what waits.

    def mutex(self, place: str, *, reentrant: bool = False) -> locks.Mutex:
        leaf = place.partition(":")[0].endswith(LEAVES)
        return _Mutex(self, reentrant, (lambda: None) if leaf else self.point)

    def condition(self, lock: locks.Lock) -> Any:
        return _Condition(self, lock)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Have this thread, and those that it starts, go by the schedule. All others must have
        ended when the block does."""
        self._running[threading.get_ident()] = main = self._enter(
            "main", threading.current_thread()
        )

        def ours(mine: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *args, **kwargs: (mine if self._task() else real)(*args, **kwargs)

        with contextlib.ExitStack() as stack:
            for name, unit in _CLOCKS.items():
                now = partial(lambda unit: type(unit)(self._clock() * unit), unit)
                stack.enter_context(patch.object(time, name, ours(now, getattr(time, name))))
            stack.enter_context(patch.object(time, "sleep", ours(self._sleep, time.sleep)))
            threads = {"start": _start, "join": _join, "is_alive": _is_alive}
            for name, real in threads.items():
                mine = getattr(self, f"_{name}")
                patched = patch.object(threading.Thread, name, ours(mine, real))
                stack.enter_context(patched)
            stack.enter_context(patch.object(locks, "factory", self))
            # A finalizer would take locks wherever the garbage happens to be collected.
            gc.disable()
            stack.callback(gc.enable)
            try:
                yield
                self._raise()
                left = [task.name for task in self._tasks if not task.ended and task is not main]
                assert not left, f"left running: {left}"
            except Abandoned:
                self._raise()
            finally:
                self._abandon()
                self._running.clear()
        for thread in self._of:
            if thread is not threading.current_thread():
                thread.join()


class _Mutex:
    """A lock, for threads of which one runs at a time."""

    def __init__(self, scheduler: Scheduler, reentrant: bool, point: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self._reentrant = reentrant
        self._point = point
        self._owner = 0
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = threading.get_ident()
        if not self._reentrant or self._owner != me:
            self._point()
            if self._owner and not blocking:
                return False
            if self._owner and not self._scheduler.wait(
                lambda: not self._owner, None if timeout < 0 else timeout
            ):
                return False
        self._owner, self._depth = me, self._depth + 1
        return True

    def release(self) -> None:
        if not self._owner:
            raise RuntimeError("release of a lock that nobody has")
        self._depth -= 1
        if not self._depth:
            self._owner = 0
            self._point()


class _Condition:
    def __init__(self, scheduler: Scheduler, lock: locks.Lock) -> None:
        self._scheduler = scheduler
        self._lock = lock
        self._waiting: list[list[bool]] = []
        self.acquire, self.release = lock.acquire, lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        told: list[bool] = []
        self._waiting.append(told)
        depth = self._lock._release_save()
        try:
            return self._scheduler.wait(lambda: bool(told), timeout)
        finally:
            self._waiting = [one for one in self._waiting if one is not told]
            self._lock._acquire_restore(depth)

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        until = None if timeout is None else self._scheduler.now + timeout
        while not (result := predicate()):
            left = None if until is None else until - self._scheduler.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        for told in self._waiting[:n]:
            told.append(True)
        self._waiting = self._waiting[n:]

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


def run(scenario: Callable[[Scheduler], None], choose: Chooser) -> Scheduler:
    """Run a scenario by one schedule. An error says which: a `Script` of that repeats it."""
    scheduler = Scheduler(choose)
    try:
        with scheduler.running():
            scenario(scheduler)
    except BaseException as error:
        error.add_note(f"schedule: {scheduler.switches}")
        raise
    return scheduler


def explore(scenario: Callable[[Scheduler], None], seeds: Iterable[int]) -> None:
    """Run a scenario by a schedule for each seed, and first by the one without any."""
    steps = run(scenario, Script()).steps
    for seed in seeds:
        run(scenario, Seeded(seed, steps))


def explore_all(scenario: Callable[[Scheduler], None], switches: int) -> int:
    """Run a scenario by every schedule with so many more switches than it must have; return how
    many there were."""
    count, scripts = 0, [Switches()]
    while scripts:
        script = scripts.pop()
        count += 1
        options = run(scenario, Script(script)).options
        if len(script) < switches:
            last = max(script, default=0)
            scripts += [{**script, at: n} for at, names in options if at > last for n in names]
    return count
