"""Handlers of signals run when the store is done with a call, or where it waits for a disk."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from kit.storage import FaultyDisk, Story, commit, files_in, open_store
from kit.storm import Work
from omlx_cache import BlockStore
from omlx_cache.integrations.mlx_lm.prompt_cache import TieredPromptCache
from omlx_cache_storage import calls
from omlx_cache_storage.calls import uninterrupted

Handler = Callable[[int, FrameType | None], object]


class HandlerError(Exception):
    """What the handlers of these tests raise."""


def _raise(number: int, frame: FrameType | None) -> None:
    raise HandlerError


@contextmanager
def handling(handler: Handler, number: int = signal.SIGUSR1) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def to_main_thread(number: int = signal.SIGUSR1) -> None:
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, number)


def small(directory: Path, disk: FaultyDisk | None = None) -> BlockStore:
    return open_store(directory, disk, hot_bytes=192 * 1024, queue_bytes=64 * 1024, block_size=16)


def test_a_handler_runs_after_the_call_and_is_back_in_its_place() -> None:
    ran: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        ran.append(number)

    with handling(note):
        with uninterrupted:
            with uninterrupted:
                signal.raise_signal(signal.SIGUSR1)
            assert ran == []
        assert ran == [signal.SIGUSR1]
        assert signal.getsignal(signal.SIGUSR1) is note


def test_a_handler_that_calls_the_store_while_handlers_are_put_off_stays_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[int] = []

    class Late:
        """Python's own, but that a signal comes just before its handler is changed."""

        getsignal = staticmethod(signal.getsignal)

        @staticmethod
        def signal(number: int, handler: Handler) -> object:
            if number == signal.SIGUSR1:
                signal.raise_signal(number)
            return signal.signal(number, handler)

    def ask(number: int, frame: FrameType | None) -> None:
        ran.append(number)
        if len(ran) % 4 == 1:
            with uninterrupted:
                pass

    with handling(ask):
        monkeypatch.setattr(calls, "_signal", Late)
        for _ in range(3):
            with uninterrupted:
                assert signal.getsignal(signal.SIGUSR1) is not ask
            assert signal.getsignal(signal.SIGUSR1) is ask
        assert len(ran) >= 3


def test_what_a_handler_raises_comes_out_of_the_call_and_the_next_handler_runs_too() -> None:
    ran: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        ran.append(number)

    def both() -> None:
        with uninterrupted:
            signal.raise_signal(signal.SIGUSR2)
            signal.raise_signal(signal.SIGUSR1)

    with handling(note, signal.SIGUSR2), handling(_raise), pytest.raises(HandlerError):
        both()
    assert ran == [signal.SIGUSR2]


@pytest.mark.parametrize("inside", [False, True])
def test_a_handler_that_steps_aside_for_a_second_finds_and_keeps_the_program_s(
    inside: bool,
) -> None:
    """As a first Ctrl-C does whose cleaning-up shall be ended by the second one."""
    ran: list[str] = []
    found: list[Any] = []

    def second(number: int, frame: FrameType | None) -> None:
        ran.append("second")

    def first(number: int, frame: FrameType | None) -> None:
        ran.append("first")
        found.append(signal.signal(number, second))

    with handling(first):
        with uninterrupted:
            signal.raise_signal(signal.SIGUSR1)
            if inside:
                uninterrupted.point()
                signal.raise_signal(signal.SIGUSR1)
                assert ran == ["first"]
        assert signal.getsignal(signal.SIGUSR1) is second
        signal.signal(signal.SIGUSR1, found[0])
        signal.raise_signal(signal.SIGUSR1)
    assert ran == (["first", "second", "first"] if inside else ["first", "first"])


def test_signals_without_a_handler_of_python_s_and_other_threads_are_left_alone() -> None:
    seen: list[object] = []

    def look() -> None:
        with uninterrupted:
            seen.append(signal.getsignal(signal.SIGUSR1))

    with uninterrupted:
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
    thread = threading.Thread(target=look)
    with handling(_raise):
        thread.start()
        thread.join()
    assert seen == [_raise]


def test_a_handler_that_waits_for_too_long_runs_wherever_the_thread_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "PATIENCE_SECONDS", 0.05)
    lock = threading.Lock()
    lock.acquire()
    with handling(_raise), uninterrupted:
        signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(HandlerError):
            lock.acquire(timeout=60)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_child_of_a_fork_during_a_call_has_its_handlers_back() -> None:
    status: list[int] = []

    def fork() -> None:
        child = os.fork()
        if child == 0:
            back = signal.getsignal(signal.SIGUSR1) is _raise
            os._exit(0 if back and not uninterrupted.active else 1)
        status.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    thread = threading.Thread(target=fork)
    with handling(_raise), uninterrupted:
        thread.start()
        thread.join()
    assert status == [0]


@pytest.mark.parametrize("call", ["flush", "close", "clear"])
def test_an_interrupt_ends_the_wait_for_a_hung_disk_and_close_goes_on(
    tmp_path: Path, call: str
) -> None:
    disk, story = FaultyDisk(), Story()
    store = open_store(tmp_path, disk)
    disk.gate.clear()
    disk.reached.clear()
    commit(store, story, 1)
    assert disk.reached.wait(30)
    calls = {
        "flush": lambda: store.flush(60),
        "close": lambda: store.close(60),
        "clear": lambda: store.clear(story.namespace, 60),
    }
    sender = threading.Timer(0.2, to_main_thread)
    began = time.monotonic()
    with handling(_raise):
        sender.start()
        with pytest.raises(HandlerError):
            calls[call]()
    assert time.monotonic() - began < 10
    sender.join()
    disk.gate.set()
    assert store.close(30)
    assert call == "clear" or len(files_in(tmp_path)) == 1
    assert {held.id for held in store.hot.entries()} == set()


def test_a_handler_may_close_the_store_wherever_the_main_thread_is(tmp_path: Path) -> None:
    pick = random.Random(2)
    for number in range(12):
        store = small(tmp_path / str(number))
        work, closed = Work(store, number), []

        def close(number: int, frame: FrameType | None, store: BlockStore = store) -> None:
            closed.append(store.close(30))  # noqa: B023

        sender = threading.Timer(pick.random() * 0.15, to_main_thread)
        with handling(close):
            sender.start()
            while not closed:
                work.step()
            sender.join()
        assert closed == [True]
        assert {held.id for held in store.hot.entries()} == set()
        assert not work.wrong


class _Signalled:
    """A lock that the main thread has just taken when a signal comes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        assert self._lock.acquire(timeout=5), "a thread waits for a lock that it holds itself"
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGUSR1)

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("call", ["lookup", "prefetch", "clear", "mlx-lm's cache"])
def test_a_handler_may_ask_and_flush_the_store_during_any_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    with small(tmp_path) as store:
        work, asked = Work(store, 3), []
        work.step()
        drop_in = TieredPromptCache(store)
        calls: dict[str, Callable[[], object]] = {
            "lookup": lambda: work.cache.lookup(work.prompt()),
            "prefetch": lambda: work.cache.prefetch(work.prompt()),
            "clear": lambda: work.cache.clear(salt="1"),
            "mlx-lm's cache": lambda: drop_in.fetch_nearest_cache(None, work.prompt()),
        }

        def ask(number: int, frame: FrameType | None) -> None:
            if not asked:
                asked.append(store.flush(30))
                work.cache.lookup(work.prompt())
                assert store.labels
                assert store.stats().requests.sessions

        with handling(ask), monkeypatch.context() as patch:
            for owner in (store._namespaces, store, store.counters):
                patch.setattr(owner, "_lock", _Signalled())
            calls[call]()
        assert asked == [True]
