"""The threads that wait for disks: in order, bounded, and never in the way of an exit."""

import gc
import threading
import weakref

import pytest

from omlx_cache_storage.io_threads import ReaderPool


def test_tasks_run_in_order_and_hand_over_results_and_errors() -> None:
    seen: list[int] = []
    pool = ReaderPool(1, "test")
    futures = [pool.submit(seen.append, n) for n in range(20)]
    failed = pool.submit(int, "x")
    assert [f.result(30) for f in futures] == [None] * 20
    assert seen == list(range(20))
    assert isinstance(failed.exception(30), ValueError)
    assert list(pool.map(lambda n: n * n, range(5))) == [0, 1, 4, 9, 16]
    assert pool.stop(30)
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(int)


def test_stopping_leaves_a_task_that_hangs_behind_and_cancels_those_that_wait() -> None:
    pool = ReaderPool(1, "test")
    gate, begun = threading.Event(), threading.Event()

    def hang() -> str:
        begun.set()
        assert gate.wait(60)
        return "came"

    hanging, waiting = pool.submit(hang), pool.submit(int)
    assert begun.wait(30)
    assert not pool.stop(0.05)
    assert waiting.cancelled()
    gate.set()
    assert hanging.result(30) == "came"
    assert pool.stop(30)


def test_pools_that_follow_each_other_use_the_same_threads() -> None:
    """MLX keeps a thread of its own for every thread that ever made an array."""
    warm = ReaderPool(2, "warm")
    for _ in range(2):
        warm.submit(int)
    assert warm.stop(30)
    before = threading.active_count()
    for number in range(20):
        pool = ReaderPool(2, f"pool-{number}")
        pool.submit(int).result(30)
        assert pool.stop(30)
    assert threading.active_count() == before


def test_a_thread_keeps_nothing_of_its_last_task() -> None:
    class Payload:
        pass

    pool = ReaderPool(1, "test")
    payload = Payload()
    gone = weakref.ref(payload)
    pool.submit(id, payload).result(30)
    del payload
    pool.submit(int).result(30)
    gc.collect()
    assert gone() is None
    assert pool.stop(30)
