"""A program's calls of the store. Signals wait until the store is done with one: no handler runs,
and raises, in its middle. An argument of a wrong type is ignored, and ends no request.

Python runs signal handlers on the main thread between any two instructions. One that raises, as
Ctrl-C does, would leave books half-written and locks held (`with condition` keeps its lock in 4 of
10 tries). One that calls the store would wait for a lock that its own thread holds. So a call of
the store on the main thread puts off Python's handlers, until it ends or comes to a point where
nothing is half-done. Public entry points are guarded, and calls inside them by that guard.
"""

import _signal  # type: ignore[import-not-found]
import _thread
import contextlib
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from numbers import Integral, Number
from reprlib import repr as short
from types import FrameType
from typing import Any, TypeGuard, TypeVar

_log = logging.getLogger(__name__)

Known = TypeVar("Known")
_Handler = Callable[[int, FrameType | None], Any]

TURN_SECONDS = 0.05
"""How long a handler waits at most where the main thread waits for a disk."""
PATIENCE_SECONDS = 2.0
"""How long a handler waits at most, wherever the main thread is: a hang must be breakable."""

# Signals that programs handle; not SIGPROF and SIGVTALRM: profilers want to see the middle.
# `signal` wraps `_signal`, which makes no enumerations: they take most of the time.
_NUMBERS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGALRM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCHLD,
)


class _Deferral(contextlib.ContextDecorator):
    """A context manager, and a decorator, to be entered any number of times; without effect on
    other threads.

    Mutable by the main thread, `_thread`. `_before`: the handlers that were put off; `_replaced`:
    those of them that another handler replaced meanwhile; `_came`: the signals since; `_since`:
    when the first of them came. `_reminding` is true while a thread watches how long they wait,
    `_restoring` while handlers are put back to run. A handler of ours that is still called, after
    an interrupt or since other code put it back, passes its signal on. So every state between two
    instructions is a good one.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._thread = threading.main_thread().ident or 0
        self._before: dict[int, _Handler] = {}
        self._replaced: dict[int, _Handler] = {}
        self._came: dict[int, FrameType | None] = {}
        self._since = 0.0
        self._reminding = False
        self._restoring = False

    def __enter__(self) -> None:
        if threading.get_ident() != self._thread:
            return
        # First: handlers of signals that come meanwhile may call the store too, and theirs must not
        # be the call that puts all back.
        self._depth += 1
        if self._depth == 1:
            try:
                self._put_off()
            except BaseException:
                self.__exit__()
                raise

    def __exit__(self, *_: object) -> None:
        if threading.get_ident() != self._thread:
            return
        if self._depth > 1:
            self._depth -= 1
            return
        self._depth = 0
        try:
            if self._came:
                self._deliver()
        finally:
            self._restore()

    @property
    def active(self) -> bool:
        return self._depth > 0 and threading.get_ident() == self._thread

    def point(self) -> None:
        """Run the handlers of signals that have come, where nothing is half-done and no lock is
        held. Raises their exceptions."""
        if self._came and self.active:
            self._deliver()

    def after_fork(self) -> None:
        parent, self._thread = self._thread, threading.get_ident()
        if self._depth and self._thread != parent:
            self._depth = 0
            self._came.clear()
            self._restore()
        self._reminding = False

    def _put_off(self) -> None:
        for number in _NUMBERS:
            handler = _signal.getsignal(number)
            if not callable(handler):
                continue
            if handler != self._note:
                self._before[number] = handler
                # A subinterpreter has a main thread, and no signals.
                with contextlib.suppress(ValueError):
                    # Another one, if the last signal that the handler saw made it give way.
                    self._before[number] = _signal.signal(number, self._note)
            elif number in self._replaced:
                self._before[number] = self._replaced.pop(number)

    def _restore(self) -> None:
        for number, handler in list(self._before.items()):
            there = _signal.getsignal(number)
            if there == self._note:
                _signal.signal(number, handler)
            elif there is not handler:
                # Set by code that may put back the handler that it found.
                self._replaced[number] = handler
            self._before.pop(number, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self._came:
            self._since = time.monotonic()
        self._came[number] = frame
        if self._restoring:
            # They run in a moment, when all handlers are in their places.
            return
        if not self._depth:
            self._deliver()
        elif time.monotonic() - self._since >= PATIENCE_SECONDS:
            # In the middle of a call. If one raises, calls are left wherever they are: none of them
            # counts any more.
            try:
                self._deliver()
            except BaseException:
                self._depth = 0
                self._restore()
                raise
        elif not self._reminding:
            self._reminding = True
            # Not by `threading`: its `start` waits, with a lock of the kind that a handler breaks.
            _thread.start_new_thread(self._remind, ())

    def _remind(self) -> None:
        while self._came:
            left = self._since + PATIENCE_SECONDS - time.monotonic()
            # One that came lately runs soon. Sent again, it might find no handler and end all.
            for number in list(self._came) if left <= 0 else ():
                if _signal.getsignal(number) == self._note:
                    signal.pthread_kill(self._thread, number)
            time.sleep(left if left > 0 else PATIENCE_SECONDS)
        self._reminding = False

    def _deliver(self) -> None:
        """Run the handlers of the signals that have come, each in its place. One that calls
        `signal.signal`, as many do for a second Ctrl-C, must find and keep the program's handlers,
        not ours."""
        depth, self._depth = self._depth, 0
        try:
            handlers = dict(self._before)
            self._restoring = True
            try:
                self._restore()
            finally:
                self._restoring = False
            self._run(handlers)
        finally:
            self._depth = depth
            if depth:
                self._put_off()

    def _run(self, handlers: dict[int, _Handler]) -> None:
        if not self._came:
            return
        try:
            number, frame = self._came.popitem()
            handler = handlers.get(number) or self._replaced.get(number)
            if callable(handler):
                handler(number, frame)
        finally:
            self._run(handlers)


uninterrupted = _Deferral()
os.register_at_fork(after_in_child=uninterrupted.after_fork)


def wait_in_turns(wait: Callable[[float | None], bool], timeout: float | None) -> bool:
    """Call `wait(seconds)` until it is True or `timeout` seconds have passed; return the last.
    Handlers run between the turns: the caller holds no lock, and nothing that it has not
    secured."""
    if not uninterrupted.active:
        return wait(timeout)
    deadline = time.monotonic() + (math.inf if timeout is None else timeout)
    while True:
        uninterrupted.point()
        left = deadline - time.monotonic()
        if wait(max(0.0, min(left, TURN_SECONDS))):
            return True
        if left <= TURN_SECONDS:
            return False


def turn(condition: threading.Condition, is_so: Callable[[], bool], seconds: float | None) -> bool:
    """Wait for a condition, with two arguments bound as `wait` of `wait_in_turns`."""
    with condition:
        return condition.wait_for(is_so, seconds)


def done_within(future: "Future[Any]", timeout: float | None) -> bool:
    return future.done() or wait_in_turns(lambda left: bool(wait_for([future], left).done), timeout)


SECONDS = "a number of seconds"
MOST_SECONDS = 2**32
"""More than a century; threads cannot wait for ever so long."""


class Arguments:
    """Returns a valid argument, or its default; never raises. An ignored argument is counted
    (`ignored_hints`), and logged the first time for each name. Any thread may call: each operation
    on `_told` is atomic."""

    def __init__(self, count_ignored: Callable[[], None]) -> None:
        self._count_ignored = count_ignored
        self._told: set[str] = set()

    def known(
        self,
        name: str,
        value: object,
        is_one: Callable[[object], TypeGuard[Known]],
        default: Known,
        wanted: str,
    ) -> Known:
        """Return a value that `is_one`, else the default; `wanted` says what to give. NumPy's
        numbers become Python's: threads and MLX take no others."""
        if isinstance(value, Number) and hasattr(value, "item"):
            value = value.item()
        if value is default or is_one(value):
            return value
        self.ignore(name, value, wanted)
        return default

    def ignore(self, name: str, value: object, wanted: str) -> None:
        self._count_ignored()
        self.say(name, f"{name}={short(value)} is ignored: give {wanted}")

    def say(self, name: str, message: str) -> None:
        if name not in self._told:
            self._told.add(name)
            _log.warning("%s", message)


def is_seconds(value: object) -> TypeGuard[float]:
    """True for a time that a thread can wait for: no bool, not NaN, not infinite."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= MOST_SECONDS
    )


def is_timeout(value: object) -> TypeGuard[float | None]:
    return value is None or is_seconds(value)


def is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_count(value: object) -> TypeGuard[int]:
    return is_whole(value) and value >= 0
