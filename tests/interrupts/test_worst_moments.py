"""A signal right after each step that takes something: with a lock held, or before it is owned."""

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from kit.examples import some
from kit.storage import open_store
from kit.storm import Work
from omlx_cache import BlockStore
from omlx_cache.commit.admission import Admission
from omlx_cache.restore.queue import RestoreQueue
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.stats import Counters
from omlx_cache_storage.writer import Writer

STEPS = [
    (HotTier, "_victims"),
    (HotTier, "reserve"),
    (HotTier, "queue"),
    (HotTier, "_take_out"),
    (HotTier, "put"),
    (Writer, "has_room"),
    (Writer, "offer"),
    (Counters, "take_snapshot"),
    (Admission, "take_staged"),
    (RestoreQueue, "_admit"),
    (RestoreQueue, "take"),
]


class Interrupted(Exception):
    """What Ctrl-C is to these tests."""


def _raise(number: int, frame: FrameType | None) -> None:
    raise Interrupted


@contextmanager
def signalled_after(
    owner: type, step: str, handler: Callable[[int, FrameType | None], object]
) -> Iterator[list[int]]:
    """Send a signal whenever the main thread has done a step; the list counts them."""
    original = getattr(owner, step)
    sent: list[int] = []

    def stepped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if threading.current_thread() is threading.main_thread():
            sent.append(1)
            signal.raise_signal(signal.SIGUSR1)
        return result

    before = signal.signal(signal.SIGUSR1, handler)
    setattr(owner, step, stepped)
    try:
        yield sent
    finally:
        setattr(owner, step, original)
        signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    options = {"hot_bytes": 96 * 1024, "queue_bytes": 32 * 1024, "block_size": 16}
    with open_store(tmp_path, **options) as store:
        yield Work(store, 5)


def _requests(work: Work, sent: list[int]) -> None:
    """Serve until the step was interrupted ten times."""
    for _ in range(400):
        if len(sent) >= 10:
            return
        with suppress(Interrupted):
            work.request()
    raise AssertionError("the step is not on the way of a request")


@pytest.mark.parametrize(
    ("owner", "step"), some(STEPS, *STEPS[:9]), ids=lambda value: getattr(value, "__name__", value)
)
def test_an_interrupt_after_a_step_leaves_nothing_behind(
    work: Work, owner: type, step: str
) -> None:
    with signalled_after(owner, step, _raise) as sent:
        _requests(work, sent)
    gc.collect()
    assert work.store.flush(30)
    stats = work.store.stats()
    assert (stats.requests.live_sessions, stats.snapshots.live_bytes) == (0, 0)
    assert (work.store.hot._reserved, work.store.restores.nbytes) == (0, 0)
    assert {entry.tier for entry in work.store.hot.entries()} <= {"hot"}
    work.store.hot.check_integrity()
    assert not work.wrong


@pytest.mark.parametrize(
    ("owner", "step"),
    some(STEPS, *STEPS[1::3]),
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_handler_after_a_step_may_call_the_store(work: Work, owner: type, step: str) -> None:
    store: BlockStore = work.store

    def ask(number: int, frame: FrameType | None) -> None:
        store.stats()
        store.flush(0.01)
        store.shrink_hot(store.settings.hot_bytes)

    with signalled_after(owner, step, ask) as sent:
        _requests(work, sent)
    assert not work.wrong


def test_a_handler_may_close_the_store_while_its_thread_holds_a_lock(work: Work) -> None:
    closed: list[bool] = []

    def close(number: int, frame: FrameType | None) -> None:
        closed.append(work.store.close(30))

    with signalled_after(HotTier, "_take_out", close) as sent:
        _requests_until_closed(work, sent)
    assert closed[0]
    assert {held.id for held in work.store.hot.entries()} == set()


def _requests_until_closed(work: Work, sent: list[int]) -> None:
    while not sent:
        work.request()
