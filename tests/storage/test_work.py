"""What computing took and what restoring saved, on a clock that the test moves."""

import pytest

from omlx_cache_storage.measures import (
    RATED_TOKENS,
    RECENT_TOKENS,
    RequestWork,
    WorkMeter,
)


class _Time:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> _Time:
    return _Time()


@pytest.fixture
def meter(time: _Time) -> WorkMeter:
    return WorkMeter(time)


def _request(meter: WorkMeter, model: str = "m") -> RequestWork:
    return meter.request(model, f"label of {model}")


def test_four_prompts_in_one_batch_count_its_time_once(meter: WorkMeter, time: _Time) -> None:
    requests = [_request(meter) for _ in range(4)]
    for _ in range(3):
        time.now += 13.0
        for request in requests:
            request.computed(1000, 13.0)
    totals = meter.totals()
    assert totals.prefill_seconds == 39.0
    assert totals.tokens_per_second == {"label of m": pytest.approx(12_000 / 39)}


def test_saved_is_what_computing_would_have_taken_less_the_restore(
    meter: WorkMeter, time: _Time
) -> None:
    time.now += 10
    _request(meter).computed(1000, 10.0)
    time.now += 2
    _request(meter).restored(5000, 2.0)
    assert meter.totals().saved_seconds == pytest.approx(50 - 2)
    assert meter.totals().restore_seconds == 2.0


def test_restores_in_parallel_cost_what_passes_on_the_clock(meter: WorkMeter, time: _Time) -> None:
    time.now += 10
    _request(meter).computed(1000, 10.0)
    requests = [_request(meter) for _ in range(4)]
    time.now += 2
    for request in requests:
        request.restored(1000, 2.0)
    assert meter.totals().saved_seconds == pytest.approx(40 - 2)


def test_each_model_is_counted_at_its_own_rate(meter: WorkMeter, time: _Time) -> None:
    time.now += 10
    _request(meter, "slow").computed(1000, 10.0)
    time.now += 1
    _request(meter, "fast").computed(1000, 1.0)
    _request(meter, "slow").restored(200, 0.0)
    _request(meter, "fast").restored(1000, 0.0)
    assert meter.totals().tokens_per_second == {"label of slow": 100, "label of fast": 1000}
    assert meter.totals().saved_seconds == pytest.approx(2 + 1)


def test_a_few_tokens_tell_no_rate_but_a_prompt_in_small_chunks_does(
    meter: WorkMeter, time: _Time
) -> None:
    for _ in range(100):
        time.now += 1
        _request(meter).computed(1, 1.0)
    assert meter.totals().prefill_seconds == 100
    assert meter.totals().tokens_per_second == {}
    request = _request(meter)
    for _ in range(RATED_TOKENS):
        time.now += 0.5
        request.computed(1, 0.5)
    assert meter.totals().tokens_per_second == {"label of m": pytest.approx(2)}


def test_what_is_measured_now_outweighs_a_long_past(meter: WorkMeter, time: _Time) -> None:
    for seconds in (1.0, 10.0):
        for _ in range(4):
            time.now += seconds * RECENT_TOKENS / 1000
            _request(meter).computed(RECENT_TOKENS, seconds * RECENT_TOKENS / 1000)
    rate = meter.rate("m")
    assert rate == meter.totals().tokens_per_second["label of m"]
    assert 100 < rate < 120


def test_what_was_restored_before_the_first_rate_is_priced_when_that_is_known(
    meter: WorkMeter, time: _Time
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


def test_waiting_for_another_request_is_no_saving_and_counts_once_for_all_who_wait(
    meter: WorkMeter, time: _Time
) -> None:
    time.now += 10
    _request(meter).computed(1000, 10.0)
    requests = [_request(meter) for _ in range(4)]
    time.now += 6
    for request in requests:
        request.held(6.0)
        request.restored(1000, 0.0)
    assert meter.totals().saved_seconds == pytest.approx(40 - 6)
