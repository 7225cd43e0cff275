"""Threads that wait for disks: daemons, so that a disk that hangs keeps no process from ending.

A thread that has made an MLX array keeps a stream of its own, and MLX an operating system's thread
for it, for as long as the process lives. So threads are not ended with their pool: the next pool
employs them.
"""

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, ParamSpec, TypeVar

from omlx_cache_storage.interrupts import deferred, result_of, wait_in_turns

P = ParamSpec("P")
T = TypeVar("T")


class _Task(NamedTuple):
    """A call, and the future that it was promised to."""

    future: "Future[Any]"
    call: Callable[[], Any]


_Tasks = SimpleQueue[_Task | None]

_IDLE_NAME = "idle-reader"


class _Worker(threading.Thread):
    """A thread that is employed by one pool after the other."""

    def __init__(self) -> None:
        super().__init__(name=_IDLE_NAME, daemon=True)
        self._employments: SimpleQueue[_Employment] = SimpleQueue()
        self.start()

    def employ(self, employment: "_Employment") -> None:
        self._employments.put(employment)

    def run(self) -> None:
        while True:
            employment = self._employments.get()
            self.name = employment.name
            _run(employment.tasks)
            self.name = _IDLE_NAME
            _idle.append(self)
            employment.ended.set()
            del employment


class _Employment(NamedTuple):
    """A pool's tasks for one worker; `ended` is set when it has left them."""

    tasks: _Tasks
    name: str
    ended: threading.Event


_idle: deque[_Worker] = deque()
"""Workers that no pool employs; appending and popping are atomic."""
os.register_at_fork(after_in_child=_idle.clear)


def _employ(employment: _Employment) -> None:
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
    worker.employ(employment)


class ReaderPool(Executor):
    """Runs tasks in the order in which they came, on at most `threads` daemon threads; its owner
    may allow more, `most` in all, while some hang.

    Mutable: `_limit`, `_employed` and `_closed`, guarded by `_lock`, which is held over no task. A
    pool that is lost without `shutdown` ends its threads without taking a lock.
    """

    def __init__(self, threads: int, name: str, *, most: int = 0) -> None:
        self._limit = threads
        self._most = max(threads, most)
        self._name = name
        self._lock = threading.Lock()
        self._tasks: _Tasks = SimpleQueue()
        self._employed: list[_Employment] = []
        self._closed = False
        self._finalizer = weakref.finalize(self, _end, self._tasks, self._most)
        self._finalizer.atexit = False

    def allow(self, threads: int) -> None:
        """From now on employ up to `threads`; those that are employed stay."""
        with self._lock:
            self._limit = min(threads, self._most)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Queue a call and return its future; raises RuntimeError after `shutdown`, and when there
        is no thread for it and none can be had."""
        future: Future[T] = Future()
        task = _Task(future, partial(fn, *args, **kwargs))
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self._name} is shut down")
            if len(self._employed) < self._limit:
                self._employ_one()
            self._tasks.put(task)
        return future

    def _employ_one(self) -> None:
        name = f"{self._name}-{len(self._employed)}"
        employment = _Employment(self._tasks, name, threading.Event())
        try:
            _employ(employment)
        except RuntimeError:
            # The system has no more threads for this process: those that there are do the work.
            if not self._employed:
                raise
        else:
            self._employed.append(employment)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more tasks; with `wait`, block until the threads have left them."""
        self.stop(None if wait else 0.0, cancel_futures=cancel_futures)

    def stop(self, timeout: float | None, *, cancel_futures: bool = True) -> bool:
        """Take no more tasks and wait at most `timeout` seconds for the threads.

        False when one is still in its task: it is left behind, and ends when the task does.
        """
        with self._lock:
            self._closed = True
            employed = list(self._employed)
        if cancel_futures:
            _cancel(self._tasks)
        _end(self._tasks, self._most)
        deadline = None if timeout is None else time.monotonic() + timeout
        for employment in employed:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            wait_in_turns(employment.ended.wait, left)
        return all(employment.ended.is_set() for employment in employed)


def on_another_thread(call: Callable[[], T], name: str) -> T:
    """Return what a call that waits for a disk returns, or raise what it raises; on the main thread
    such that an interrupt ends the wait, and not the call."""
    if not deferred.active:
        return call()
    pool = ReaderPool(1, name)
    try:
        result = result_of(pool.submit(call))
    except BaseException:
        pool.stop(0.0)
        raise
    pool.stop(1.0)
    return result


def _run(tasks: _Tasks) -> None:
    while True:
        task = tasks.get()
        if task is None:
            return
        if task.future.set_running_or_notify_cancel():
            _fulfil(task)
        # A thread that waits must not keep what its last task has read.
        del task


def _fulfil(task: _Task) -> None:
    try:
        result = task.call()
    except BaseException as error:
        task.future.set_exception(error)
    else:
        task.future.set_result(result)


def _end(tasks: _Tasks, threads: int) -> None:
    for _ in range(threads):
        tasks.put(None)


def _cancel(tasks: _Tasks) -> None:
    with contextlib.suppress(Empty):
        while True:
            task = tasks.get_nowait()
            if task is not None:
                task.future.cancel()
                task.future.set_running_or_notify_cancel()
