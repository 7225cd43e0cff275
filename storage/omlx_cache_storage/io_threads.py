"""Threads that wait for disks: daemons, so that a disk that hangs keeps no process from ending.

A thread that has made an MLX array keeps a stream of its own, and an operating system's thread for
it, as long as the process lives. So threads are not ended with their pool: the next pool employs
them.
"""

import contextlib
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

from omlx_cache_storage.calls import done_within, uninterrupted, wait_in_turns

P = ParamSpec("P")
T = TypeVar("T")

STALL_SECONDS = 2.0
"""A disk that gives not a byte for so long hangs: it is not waited for."""
_LOOK_SECONDS = 0.25


class LastAnswer:
    """The time of the disk's last answer to any thread; a stamp is atomic."""

    def __init__(self, pool: "LastAnswer | None" = None) -> None:
        self.at = time.monotonic()
        self._pool = pool

    def move(self, at: float | None = None) -> None:
        """Note an answer now; one that is yet to come, as `math.inf`, is no stall until then."""
        self.at = time.monotonic() if at is None else at
        if self._pool is not None:
            self._pool.at = self.at

    def stalls(self, seconds: float) -> bool:
        return time.monotonic() - self.at >= seconds


class Read(Future[T]):
    """The promise of a call, with its progress and that of all calls of its pool."""

    def __init__(self, pool: LastAnswer, call: Callable[[], T] | None = None) -> None:
        super().__init__()
        self.pool = pool
        self.own = LastAnswer(pool)
        self._call = call

    def run(self) -> None:
        """Make the call on this thread, unless it was cancelled; keep nothing of it."""
        call, self._call = self._call, None
        if call is None or not self.set_running_or_notify_cancel():
            return
        _current.progress = self.own
        self.own.move()
        try:
            self.set_result(call())
        except BaseException as error:
            self.set_exception(error)
        finally:
            _current.progress = None


class _Current(threading.local):
    """Whose progress the calling thread makes."""

    progress: LastAnswer | None = None


_current = _Current()


def follow(progress: LastAnswer) -> None:
    """Count the disk's answers to the calling thread as this progress."""
    _current.progress = progress
    progress.move()


def note_answer() -> None:
    if _current.progress is not None:
        _current.progress.move()


def progress() -> LastAnswer:
    return _current.progress or LastAnswer()


@contextlib.contextmanager
def bounded_elsewhere() -> Iterator[None]:
    """Mark the calling thread's wait as one for cores, or for calls with deadlines of their own.
    Its disk does not hang, and calls that wait for its thread are not late."""
    progress().move(math.inf)
    try:
        yield
    finally:
        note_answer()


def result_along(future: "Future[T]") -> T:
    seen = 0.0
    while not done_within(future, _LOOK_SECONDS):
        at = future.pool.at if isinstance(future, Read) else seen
        if at != seen or at == math.inf:
            seen = at
            note_answer()
    return future.result()


def came(future: "Future[Any]", seconds: float = STALL_SECONDS) -> bool:
    """Wait for a future; False once the disk did not answer for `seconds`. A call that has not
    begun moves with its pool's others. Handlers of signals run meanwhile."""
    began = time.monotonic()
    while not done_within(future, min(seconds, _LOOK_SECONDS)):
        since = began
        if isinstance(future, Read):
            since = max(began, (future.own if future.running() else future.pool).at)
        if time.monotonic() - since >= seconds:
            return future.done()
    return True


_Tasks = SimpleQueue[Read[Any] | None]

_IDLE_NAME = "idle-reader"


class _Employment(NamedTuple):
    """A pool's tasks for one thread; `ended` is set when it has left them."""

    tasks: _Tasks
    name: str
    ended: threading.Event


_Employments = SimpleQueue[_Employment]

_idle: deque[_Employments] = deque()
"""What threads wait for that no pool employs; appending and popping are atomic."""
os.register_at_fork(after_in_child=_idle.clear)


def _work(employments: _Employments) -> None:
    """Work for one pool after the other."""
    thread = threading.current_thread()
    while True:
        employment = employments.get()
        thread.name = employment.name
        while (read := employment.tasks.get()) is not None:
            read.run()
            # A thread that waits must not keep what its last task has read.
            del read
        thread.name = _IDLE_NAME
        _idle.append(employments)
        employment.ended.set()
        del employment


class ReaderPool(Executor):
    """Runs tasks in the order in which they came, on at most `threads` daemon threads; its owner
    may allow more, `most` in all, while some hang.

    `_lock` guards `_limit`, `_employed` and `_closed`, and is held over no task. A pool that is
    lost without `shutdown` ends its threads without taking a lock.
    """

    def __init__(self, threads: int, name: str, *, most: int = 0) -> None:
        self._limit = threads
        self._most = max(threads, most)
        self._name = name
        self._progress = LastAnswer()
        self._lock = threading.Lock()
        self._tasks: _Tasks = SimpleQueue()
        self._employed: list[_Employment] = []
        self._closed = False
        self._finalizer = weakref.finalize(self, _end, self._tasks, self._most)
        self._finalizer.atexit = False

    def allow_one_more(self) -> None:
        self.allow(self._limit + 1)

    def allow(self, threads: int) -> None:
        with self._lock:
            self._limit = min(threads, self._most)
            if self._employed and not self._closed:
                for _ in range(min(self._tasks.qsize(), self._limit - len(self._employed))):
                    self._employ_one()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Queue a call and return its future; raises RuntimeError after `shutdown`, and when there
        is no thread for it and none can be had."""
        read = Read(self._progress, partial(fn, *args, **kwargs))
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self._name} is shut down")
            if len(self._employed) < self._limit:
                self._employ_one()
            self._tasks.put(read)
        return read

    def _employ_one(self) -> None:
        employment = _Employment(
            self._tasks, f"{self._name}-{len(self._employed)}", threading.Event()
        )
        try:
            employments = _idle.pop()
        except IndexError:
            employments = _Employments()
            thread = threading.Thread(
                target=_work, args=(employments,), name=_IDLE_NAME, daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                # The system has no more threads for this process: the existing ones do the work.
                if not self._employed:
                    raise
                return
        employments.put(employment)
        self._employed.append(employment)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.stop(None if wait else 0.0, cancel_futures=cancel_futures)

    def stop(self, timeout: float | None, *, cancel_futures: bool = True) -> bool:
        """Take no more tasks and wait at most `timeout` seconds for the threads; False when one is
        still in its task: it is left behind, and ends when the task does."""
        with self._lock:
            self._closed = True
            employed = list(self._employed)
        with contextlib.suppress(Empty):
            while cancel_futures:
                read = self._tasks.get_nowait()
                if read is not None and read.cancel():
                    read.set_running_or_notify_cancel()
        _end(self._tasks, self._most)
        deadline = None if timeout is None else time.monotonic() + timeout
        for employment in employed:
            wait_in_turns(
                employment.ended.wait,
                None if deadline is None else max(0.0, deadline - time.monotonic()),
            )
        return all(employment.ended.is_set() for employment in employed)


class DiskThread:
    """Calls what may wait for a disk, one call after the other, on a thread of its own. A disk that
    hangs is waited for once: until that call has ended, others are not made."""

    def __init__(self, name: str) -> None:
        self._pool = ReaderPool(1, name)
        self._late: Future[Any] | None = None

    def ask(self, call: Callable[[], T], seconds: float, otherwise: T) -> T:
        """Return a call's result or raise its exception; `otherwise` after `seconds`, and at once
        while an earlier call is late, or when there is no thread. Runs no handlers."""
        late = self._late
        if late is not None and not late.done():
            return otherwise
        try:
            asked = self._pool.submit(call)
            asked.exception(seconds)
        except TimeoutError:
            self._late = asked
            return otherwise
        except (RuntimeError, CancelledError):
            return otherwise
        return asked.result()

    def stop(self, timeout: float = 0.0) -> None:
        self._pool.stop(timeout)


def within(call: Callable[[], T], name: str, seconds: float | None, otherwise: T) -> T:
    """Return the result of a call that may wait for a disk, or raise its exception; `otherwise`
    after `seconds`, and the call goes on. An interrupt ends the wait, and not the call."""
    pool = ReaderPool(1, name)
    try:
        asked = pool.submit(call)
        return asked.result() if done_within(asked, seconds) else otherwise
    finally:
        pool.stop(0.0, cancel_futures=False)


def on_another_thread(call: Callable[[], T], name: str) -> T:
    """Return the result of a long call, or raise its exception; on the main thread as `within`
    does."""
    return within(call, name, None, cast(T, None)) if uninterrupted.active else call()


def _end(tasks: _Tasks, threads: int) -> None:
    for _ in range(threads):
        tasks.put(None)
