"""A prefix that one request computes: those who need it too wait for it, and for nothing else."""

import threading
from typing import Any

import pytest

from kit import zoo
from kit.drive import feed, prefill, random_tokens, run, same
from kit.examples import some
from kit.restoring import BLOCK, DENSE, HYBRID, WINDOWED
from omlx_cache import PrefixCache, Session

SHARED = random_tokens(150, 1)
FIRST = SHARED + random_tokens(90, 2)
SECOND = SHARED + random_tokens(70, 3)


@pytest.fixture(params=some([DENSE, WINDOWED, HYBRID], WINDOWED))
def model(request: pytest.FixtureRequest) -> Any:
    return zoo.build(request.param)


def common(cache: PrefixCache, tokens: int) -> int:
    """How much of a shared prefix can be restored: for windows and state, all of it."""
    trims = cache.scope().trims
    return tokens // BLOCK * BLOCK if trims else tokens


def compute(model: Any, session: Session, upto: int, steps: list[list[int]]) -> int:
    """Feed a prompt to at least `upto` tokens, noting the chunks; return how many were fed."""
    fed = session.cached_tokens + sum(map(len, steps))
    while fed < upto and (count := session.next_stop(BLOCK)):
        chunk = session.tokens[fed : fed + count]
        feed(model, session.prompt_cache, chunk)
        fed += count
        session.checkpoint(fed)
        steps.append(chunk)
    return fed


def test_it_is_held_until_the_blocks_are_there_and_restores_them(
    model: Any, cache: PrefixCache
) -> None:
    wanted = common(cache, len(SHARED))
    with cache.session(FIRST) as first:
        begun = cache.begin(SECOND)
        steps: list[list[int]] = []
        fed = 0
        while fed < wanted:
            assert begun.held
            assert not begun.ready
            assert cache.store.restores.nbytes == 0
            fed = compute(model, first, fed + 1, steps)
        assert begun.ready
        assert not begun.held
        with cache.session(SECOND, begun=begun) as second:
            assert second.cached_tokens == wanted
            turn = prefill(model, second, BLOCK)
            # Windows are cut from a chunk that goes on.
            steps[-1] = steps[-1][: len(steps[-1]) - (fed - wanted)]
            assert same(turn.logits, run(model, [*steps, *turn.steps]))


@pytest.mark.parametrize("seconds", [0, 1e-9])
def test_the_bound_is_kept(model: Any, cache: PrefixCache, seconds: float) -> None:
    cache.store.flights.wait_seconds = seconds
    with cache.session(FIRST) as first:
        begun = cache.begin(SECOND)
        assert not begun.held
        assert begun.wait(30)
        compute(model, first, 2 * BLOCK, [])
        assert not begun.held


def test_a_request_that_never_computes_is_not_waited_for_for_long(
    cache: PrefixCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with cache.session(FIRST):
        begun = cache.begin(FIRST)
        now += 100
        assert begun.held
        now += 30
        assert not begun.held
        assert begun.held_seconds == 130


def test_waiting_on_the_thread_that_computes_ends_at_once(model: Any, cache: PrefixCache) -> None:
    with cache.session(FIRST):
        begun = cache.begin(SECOND)
        assert begun.held
        assert begun.wait()
        assert not begun.held


def test_waiting_ends_when_another_thread_has_computed_it(model: Any, cache: PrefixCache) -> None:
    started, go = threading.Event(), threading.Event()

    def first() -> None:
        with cache.session(FIRST) as session:
            started.set()
            assert go.wait(60)
            prefill(model, session, BLOCK)

    thread = threading.Thread(target=first)
    thread.start()
    assert started.wait(60)
    begun = cache.begin(SECOND)
    assert not begun.wait(0.01)
    assert begun.held
    go.set()
    assert begun.wait(60)
    thread.join()
    with cache.session(SECOND, begun=begun) as session:
        assert session.cached_tokens == common(cache, len(SHARED))


def test_a_held_one_can_be_cancelled_and_outlive_its_store(cache: PrefixCache) -> None:
    with cache.session(FIRST):
        begun = [cache.begin(SECOND) for _ in range(2)]
        assert all(b.held for b in begun)
        begun[0].cancel()
        assert begun[0].ready
        assert not begun[0].held
        cache.store.close()
        assert begun[1].ready
    with cache.session(SECOND, begun=begun[1]) as session:
        assert session.miss_reason == "store_closed"
