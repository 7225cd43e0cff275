import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.examples import examples
from kit.workloads import grown
from omlx_cache.simulate.costs import Costs
from omlx_cache.simulate.requests import Workload
from omlx_cache.simulate.run import Outcome, Room, Setup, Simulator
from omlx_cache.simulate.shapes import Shape
from omlx_cache_storage.hot_page import WRITE_POLICIES

SHAPE = Shape("a model", 1 << 16)
NO_DISK = Room(0)


def _run(workload: Workload, hot: int, cold: int = 0, written: str = "through") -> Outcome:
    setup = Setup(0, Room(hot * 16, True), Room(cold * 16, True), "lru", written)
    return Simulator(workload, SHAPE, Costs()).run(setup)


def _suffix_first(workload: Workload, room: int) -> int:
    """Least recently used, a chain's deep end first, as a plain dict: page -> (use, -depth)."""
    held: dict[int, tuple[int, int]] = {}
    served = 0
    for use, request in enumerate(workload.requests):
        asked = request.pages[: request.asked]
        served += next((n for n, page in enumerate(asked) if page not in held), len(asked))
        own = set(request.pages)
        held |= {p: (use, -d) for d, p in enumerate(request.pages) if p in held}
        for depth, page in enumerate(request.pages):
            if page in held:
                continue
            if len(held) >= room:
                others = [p for p in held if p not in own]
                # Of its own only what lies deeper is given up.
                deeper = [p for p in held if p in own and -held[p][1] > depth]
                leaving = min(others, key=held.__getitem__) if others else None
                if leaving is None and deeper:
                    leaving = min(deeper, key=held.__getitem__)
                if leaving is None:
                    break
                del held[leaving]
            held[page] = (use, -depth)
    return served


@given(st.integers(0, 10**6), st.integers(1, 40))
def test_least_recently_used_serves_what_a_plain_model_of_it_serves(seed: int, room: int) -> None:
    workload = grown(seed)
    outcome = _run(workload, room)
    expected = _suffix_first(workload, room) * workload.block_size
    assert outcome.tokens == outcome.hot_tokens == expected


@settings(max_examples=examples(10))
@given(st.integers(0, 10**6), st.integers(1, 20), st.integers(0, 40))
def test_no_tiers_serve_more_than_the_optimum_of_their_room(seed: int, hot: int, cold: int) -> None:
    for written in WRITE_POLICIES:
        outcome = _run(grown(seed, requests=30), hot, cold, written)
        assert outcome.tokens <= outcome.optimum_tokens


@pytest.mark.parametrize("written", ["through", "lazy"])
def test_a_disk_serves_what_memory_had_no_room_for(written: str) -> None:
    workload = grown(5)
    alone, backed = _run(workload, 8), _run(workload, 8, workload.pages, written)
    unbounded = _run(workload, workload.pages)
    assert alone.tokens < backed.tokens
    assert backed.cold_tokens > 0
    assert backed.tokens == unbounded.tokens == unbounded.optimum_tokens
    assert backed.read_bytes == backed.cold_tokens * SHAPE.token_bytes


def test_what_is_written_through_is_written_once_each_page() -> None:
    workload = grown(7)
    outcome = _run(workload, workload.pages, workload.pages)
    stored = {page for request in workload.requests for page in request.pages}
    assert outcome.written_bytes == len(stored) * workload.block_size * SHAPE.token_bytes


def test_reading_from_the_disk_costs_of_what_is_saved() -> None:
    workload = grown(5)
    setup = Setup(0, Room(8 * 16, True), Room(workload.pages * 16, True), "lru", "through")
    fast, slow = (Simulator(workload, SHAPE, Costs(read=read)).run(setup) for read in (1e12, 1e6))
    assert fast.tokens == slow.tokens
    assert fast.saved_seconds - slow.saved_seconds == pytest.approx(slow.read_bytes / 1e6, rel=1e-3)


def test_a_deep_token_is_worth_more_than_a_shallow_one() -> None:
    costs = Costs(prefill=1000, doubles=1000)
    assert costs.saved(1, 0) == pytest.approx(0.001, rel=1e-2)
    assert costs.saved(1001, 0) - costs.saved(1000, 0) == pytest.approx(0.002, rel=1e-2)
