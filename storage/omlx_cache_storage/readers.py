"""Threads that wait for disks: daemons, so that a disk that hangs keeps no process from ending."""

import contextlib
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _Task(NamedTuple):
    """A call, and the future that it was promised to."""

    future: "Future[Any]"
    call: Callable[[], Any]


_Tasks = SimpleQueue[_Task | None]


class ReaderPool(Executor):
    """Runs tasks in the order in which they came, on at most `threads` daemon threads.

    Mutable: `_threads` and `_closed`, guarded by `_lock`, which is held over no task. A pool that
    is lost without `shutdown` ends its threads without taking a lock.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._limit = threads
        self._name = name
        self._lock = threading.Lock()
        self._tasks: _Tasks = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._finalizer = weakref.finalize(self, _end, self._tasks, threads)
        self._finalizer.atexit = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Queue a call and return its future; raises RuntimeError after `shutdown`."""
        future: Future[T] = Future()
        task = _Task(future, partial(fn, *args, **kwargs))
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self._name} is shut down")
            self._tasks.put(task)
            if len(self._threads) < self._limit:
                name = f"{self._name}-{len(self._threads)}"
                thread = threading.Thread(target=_run, args=(self._tasks,), name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more tasks; with `wait`, block until the threads have ended."""
        self.stop(None if wait else 0.0, cancel_futures=cancel_futures)

    def stop(self, timeout: float | None, *, cancel_futures: bool = True) -> bool:
        """Take no more tasks and wait at most `timeout` seconds for the threads.

        False when one is still in its task: it is left behind, and ends when the task does.
        """
        with self._lock:
            self._closed = True
            threads = list(self._threads)
        if cancel_futures:
            _cancel(self._tasks)
        _end(self._tasks, self._limit)
        deadline = None if timeout is None else time.monotonic() + timeout
        for thread in threads:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            thread.join(left)
        return not any(thread.is_alive() for thread in threads)


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
