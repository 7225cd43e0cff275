"""Who waits before the generator: first come, first served, and nobody for ever."""

import time
from queue import Queue
from typing import Any

import pytest

from omlx_cache.integrations.mlx_lm.server import held
from omlx_cache.integrations.mlx_lm.server.failures import FailedInputs
from omlx_cache.integrations.mlx_lm.server.held import Arrival, HeldRequests
from omlx_cache.integrations.mlx_lm.server.replies import EarlyContext, Reply
from omlx_cache.mlx_lm_versions import context_fields


class Waits:
    """What a test sets: whether a request waits, and how often it was asked."""

    def __init__(self) -> None:
        self.value, self.asked = True, 0

    def __call__(self) -> bool:
        self.asked += 1
        if self.value is None:
            raise ValueError("not to be told")
        return self.value


class Bench:
    """Held requests, with a clock of changes that a test moves."""

    def __init__(self, seconds: float = 600.0) -> None:
        self.changes = 0
        self.held = HeldRequests(lambda: self.changes, seconds)

    def arrive(self) -> Arrival:
        return Arrival(Reply(Queue(), FailedInputs()), object(), object())

    def hold(self) -> tuple[Arrival, Waits]:
        arrival, waits = self.arrive(), Waits()
        self.held.add(arrival, 100, waits)
        return arrival, waits

    def next(self) -> Arrival:
        """The next that is free; looks are rare after one that finds nobody."""
        while (taken := self.held.take()) is None:
            pass
        return taken

    def free(self, *all_waits: Any) -> None:
        for waits in all_waits:
            waits.value = False
        self.changes += 1


@pytest.fixture
def bench() -> Bench:
    return Bench()


def context() -> Any:
    return EarlyContext(
        has_tool_calling=False,
        has_thinking=False,
        tool_parser=None,
        prompt=[1, 2],
        **context_fields(None, "normal"),
    )


def test_those_that_are_free_come_in_the_order_of_their_arrival(bench: Bench) -> None:
    (one, first), (two, second), (three, third) = (bench.hold() for _ in range(3))
    assert bench.held.take() is None
    bench.free(second, third)
    assert [bench.next(), bench.next(), bench.held.take()] == [two, three, None]
    bench.free(first)
    assert bench.next() is one
    assert len(bench.held) == 0
    assert not one.reply.held


def test_they_are_looked_at_only_when_something_has_happened(bench: Bench) -> None:
    _arrival, waits = bench.hold()
    bench.held.take()
    for _ in range(50):
        bench.held.take()
    assert waits.asked == 1


def test_a_request_that_waited_long_enough_is_free() -> None:
    bench = Bench(seconds=0.0)
    arrival, waits = bench.hold()
    assert bench.held.take() is arrival
    assert waits.asked == 0


def test_it_was_held_from_its_arrival_on(bench: Bench) -> None:
    """Nobody looks at the queue while a step computes what it shares."""
    arrival = Arrival(Reply(Queue(), FailedInputs(), time.perf_counter() - 5.0), object(), object())
    waits = Waits()
    bench.held.add(arrival, 100, waits)
    bench.free(waits)
    assert bench.next().reply.held_seconds >= 5.0


def test_a_doubt_frees_it(bench: Bench) -> None:
    arrival, waits = bench.hold()
    waits.value = None  # type: ignore[assignment]
    assert bench.held.take() is arrival


def test_who_cannot_join_comes_last_and_lets_nobody_in_before(bench: Bench) -> None:
    assert not bench.held.close_with(bench.arrive())
    (one, first), (two, second) = bench.hold(), bench.hold()
    last = bench.arrive()
    assert bench.held.close_with(last)
    assert bench.held.closed
    assert last.reply.held
    bench.free(first, second)
    assert [bench.next(), bench.next(), bench.next()] == [one, two, last]
    assert bench.held.take() is None
    assert not bench.held.closed
    assert not last.reply.held


def test_a_client_that_has_left_is_not_served(bench: Bench) -> None:
    arrival, _ = bench.hold()
    told = context()
    arrival.reply.put(told)
    last = bench.arrive()
    bench.held.close_with(last)
    told.stop()
    assert bench.held.take() is last
    assert len(bench.held) == 0


def test_clients_hear_that_their_requests_are_alive(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrival, _ = bench.hold()
    bench.held.take()
    monkeypatch.setattr(held, "ALIVE_SECONDS", 0.0)
    bench.held.take()
    queue = arrival.reply._queue
    assert [queue.get_nowait() for _ in range(queue.qsize())] == [(0, 100)] * 3


def test_a_client_that_leaves_when_it_is_its_turn_stops_what_is_computed() -> None:
    queue: Queue[Any] = Queue()
    reply = Reply(queue, FailedInputs())
    early, later, latest = context(), context(), context()
    reply.put(early)
    later.prompt_cache_count = 7
    reply.put(later)
    assert queue.get_nowait() is early
    assert queue.empty()
    assert early.prompt_cache_count == 7
    early.stop()
    assert later._should_stop
    assert reply.gone
    other = Reply(queue, FailedInputs())
    other.put(gone := context())
    gone.stop()
    other.put(latest)
    assert latest._should_stop
