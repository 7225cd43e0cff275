"""Locks that are taken in both orders are found, whether a thread had to wait or not."""

import subprocess
import sys
import threading
import timeit

import pytest

from kit import locks
from kit.locks import Lock, LockOrderError


def lock(name: str, *, reentrant: bool = False) -> Lock:
    inner = locks.make_rlock() if reentrant else locks.make_lock()
    return Lock(name, inner, reentrant=reentrant)


def test_two_locks_in_both_orders_are_an_error_that_somebody_who_catches_it_does_not_hide() -> None:
    a, b = lock("test a"), lock("test b")
    with a, b:
        pass
    with b, pytest.raises(LockOrderError, match="test b -> test a -> test b"), a:
        pass
    assert len(locks.take_errors()) == 1
    assert not a.locked()


def test_a_circle_of_three_places_is_found_whatever_thread_closes_it() -> None:
    a, b, c = lock("test 1"), lock("test 2"), lock("test 3")

    def take(first: Lock, then: Lock) -> None:
        with first, then:
            pass

    for pair in ((a, b), (b, c)):
        thread = threading.Thread(target=take, args=pair)
        thread.start()
        thread.join()
    with pytest.raises(LockOrderError, match="test 3 -> test 1 -> test 2 -> test 3"):
        take(c, a)
    locks.take_errors()


def test_a_try_that_does_not_wait_is_no_part_of_a_circle() -> None:
    a, b = lock("test try a"), lock("test try b")
    with a, b:
        pass
    with b:
        assert a.acquire(blocking=False)
        a.release()


def test_two_locks_of_one_place_keep_the_order_in_which_they_were_first_taken() -> None:
    first, second, third = (lock("test one place") for _ in range(3))
    with first, second:
        pass
    with third, second:
        pass
    with second, pytest.raises(LockOrderError, match="one place"), first:
        pass
    locks.take_errors()


def test_a_lock_is_not_waited_for_by_the_thread_that_has_it() -> None:
    a, again = lock("test itself"), lock("test again", reentrant=True)
    with again, again:
        pass
    with a, pytest.raises(LockOrderError, match="test itself"):
        a.acquire()
    locks.take_errors()


def test_a_condition_gives_its_lock_back_while_it_waits() -> None:
    a = lock("test waiting", reentrant=True)
    condition = threading.Condition(a)  # type: ignore[arg-type]
    there: list[bool] = []

    def tell() -> None:
        with condition:
            there.append(True)
            condition.notify_all()

    with condition, condition:
        thread = threading.Thread(target=tell)
        thread.start()
        assert condition.wait_for(lambda: bool(there), 30)
        assert a.locked()
    thread.join()
    assert not a.locked()


def test_the_product_s_locks_are_such_ones_and_others_are_not() -> None:
    code = (
        "import kit, threading, queue\n"
        "from omlx_cache_storage.eviction.keep import Clock\n"
        "from omlx_cache_storage.events import EventLog\n"
        "print(Clock()._lock.place)\n"
        "assert isinstance(EventLog()._news._lock, kit.locks.Lock)\n"
        "assert not isinstance(queue.Queue().mutex, kit.locks.Lock)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("omlx_cache_storage.eviction.keep:Clock.__init__:")


def test_a_lock_that_is_taken_in_a_known_order_costs_some_microseconds() -> None:
    a, b = lock("test quick a"), lock("test quick b")

    def take() -> None:
        with a, b:
            pass

    take()
    # Of several tries the quickest, and far more than it is: the machine does other things.
    assert min(timeit.repeat(take, number=1000, repeat=20)) < 1000 * 50e-6
