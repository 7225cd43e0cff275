"""What computing took and what restoring saved, on a clock that the test moves; overlapping work
counts once, and values in fixed buckets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.storage import Seconds
from omlx_cache_storage.measures import (
    BOUNDS,
    MOST_SPANS,
    RATED_TOKENS,
    RECENT_TOKENS,
    Histograms,
    Intervals,
    RequestWork,
    WorkMeter,
)


@pytest.fixture
def time() -> Seconds:
    return Seconds()


@pytest.fixture
def meter(time: Seconds) -> WorkMeter:
    return WorkMeter(time)


def _request(meter: WorkMeter, model: str = "m") -> RequestWork:
    return meter.request(model, f"label of {model}")


def test_four_prompts_in_one_batch_count_its_time_once(meter: WorkMeter, time: Seconds) -> None:
    requests = [_request(meter) for _ in range(4)]
    for _ in range(3):
        time.now += 13.0
        for request in requests:
            request.computed(1000, 13.0)
    totals = meter.totals()
    assert totals.prefill_seconds == 39.0
    assert totals.prefill_tokens_per_second == {"label of m": pytest.approx(12_000 / 39)}


def test_saved_is_what_computing_would_have_taken_less_the_restore(
    meter: WorkMeter, time: Seconds
) -> None:
    time.now += 10
    _request(meter).computed(1000, 10.0)
    time.now += 2
    _request(meter).restored(5000, 2.0)
    assert meter.totals().saved_seconds == pytest.approx(50 - 2)
    assert meter.totals().restore_seconds == 2.0


@pytest.mark.parametrize(("held", "read"), [(0.0, 2.0), (6.0, 0.0)])
def test_four_who_restore_or_wait_for_another_request_cost_what_passes_on_the_clock(
    meter: WorkMeter, time: Seconds, held: float, read: float
) -> None:
    time.now += 10
    _request(meter).computed(1000, 10.0)
    requests = [_request(meter) for _ in range(4)]
    time.now += held + read
    for request in requests:
        request.held(held)
        request.restored(1000, read)
    assert meter.totals().saved_seconds == pytest.approx(40 - held - read)


def test_what_is_measured_now_outweighs_a_long_past(meter: WorkMeter, time: Seconds) -> None:
    for seconds in (1.0, 10.0):
        for _ in range(4):
            time.now += seconds * RECENT_TOKENS / 1000
            _request(meter).computed(RECENT_TOKENS, seconds * RECENT_TOKENS / 1000)
    rate = meter.rate("m")
    assert rate == meter.totals().prefill_tokens_per_second["label of m"]
    assert 100 < rate < 120


def test_short_turns_behind_a_long_prefix_do_not_slow_the_rate(
    meter: WorkMeter, time: Seconds
) -> None:
    def chunks(*sizes: int, seconds: float) -> None:
        request = _request(meter)
        for tokens in sizes:
            time.now += seconds
            request.computed(tokens, seconds)

    chunks(2048, 2048, 2048, 2048, 381, seconds=3.6)
    for _ in range(10):
        chunks(*[25] * 20, seconds=0.3)
    assert meter.rate("m") == pytest.approx(8573 / 18)
    _request(meter).restored(8567, 0.0)
    assert meter.totals().saved_seconds == pytest.approx(18, abs=0.1)


def test_small_chunks_alone_claim_nothing(meter: WorkMeter, time: Seconds) -> None:
    request = _request(meter)
    for _ in range(20):
        time.now += 1
        request.computed(RATED_TOKENS - 1, 1.0)
    request.restored(5000, 0.0)
    assert (meter.rate("m"), meter.totals().saved_seconds) == (None, 0)


def test_what_was_restored_before_the_first_rate_is_priced_when_that_is_known(
    meter: WorkMeter, time: Seconds
) -> None:
    time.now += 3
    _request(meter).restored(1000, 3.0)
    assert meter.totals().saved_seconds == 0
    time.now += 10
    _request(meter).computed(1000, 10.0)
    assert meter.totals().saved_seconds == pytest.approx(10 - 3)
    time.now += 90
    _request(meter).computed(1000, 90.0)
    assert meter.totals().saved_seconds == pytest.approx(10 - 3)


_INTERVAL = st.tuples(st.integers(0, 300), st.integers(0, 60)).map(lambda p: (p[0], p[0] + p[1]))


@given(st.lists(_INTERVAL, max_size=MOST_SPANS))
def test_the_seconds_are_those_of_the_union_in_whatever_order_intervals_come(
    intervals: list[tuple[int, int]],
) -> None:
    covered: set[int] = set()
    union = Intervals()
    for begin, end in intervals:
        union.add(begin, end)
        covered |= set(range(begin, end))
        assert union.seconds == len(covered)


@given(st.lists(_INTERVAL, min_size=2 * MOST_SPANS, max_size=4 * MOST_SPANS))
def test_what_is_forgotten_never_counts_twice(intervals: list[tuple[int, int]]) -> None:
    covered: set[int] = set()
    union = Intervals()
    for begin, end in intervals:
        union.add(3 * begin, 3 * begin + (end - begin) % 3)
        covered |= set(range(3 * begin, 3 * begin + (end - begin) % 3))
    assert union.seconds <= len(covered)


@given(st.lists(st.floats(0, 1000), max_size=50))
def test_each_bucket_counts_the_values_that_are_no_larger_than_its_bound(
    values: list[float],
) -> None:
    histograms = Histograms()
    for value in values:
        histograms.observe("restore_seconds", value)
    known = histograms.observed()["restore_seconds"]
    assert known.buckets == tuple(
        (bound, sum(value <= bound for value in values)) for bound in BOUNDS["restore_seconds"]
    )
    assert known.count == len(values)
    assert abs(known.sum - sum(values)) < 1e-6
