"""What is learned of the cost of computing and reading, and when it is forgotten."""

import pytest

from omlx_cache_storage.costs import (
    LARGER,
    LASTS_SECONDS,
    LEAST_READS,
    MEASURED_TOKENS,
    MOST_READS,
    REACH,
    RECENT_TOKENS,
    ComputeCost,
    ReadCost,
    TokenCost,
)

CHUNK = 512
MIB = 1 << 20


def learned(real: TokenCost, prompts: int = 8, length: int = 8192) -> ComputeCost:
    """Return what is learned of prompts that really cost so much."""
    compute = ComputeCost()
    for _ in range(prompts):
        for start in range(0, length, CHUNK):
            compute.add(start, CHUNK, real.seconds(start, start + CHUNK))
    return compute


@pytest.mark.parametrize("growth", [0.0, 1e-7, 1e-8])
def test_the_cost_of_a_token_is_learned_with_its_growth(growth: float) -> None:
    real = TokenCost(1e-3, growth, 8192)
    cost = learned(real).cost()
    assert cost is not None
    for start, stop in ((0, 8192), (0, 1024), (7168, 8192), (8192, 16_384)):
        assert cost.seconds(start, stop) == pytest.approx(real.seconds(start, stop), rel=0.02)


def test_nothing_is_said_before_enough_was_computed() -> None:
    compute = ComputeCost()
    assert compute.cost() is None
    compute.add(0, MEASURED_TOKENS - 1, 1.0)
    assert compute.cost() is None
    compute.add(0, 1, 1.0)
    assert compute.cost() is not None


def test_nothing_is_said_of_positions_far_beyond_what_was_computed() -> None:
    cost = learned(TokenCost(1e-3, 0.0, 0)).cost()
    assert cost is not None
    assert cost.knows(REACH * 8192)
    assert not cost.knows(REACH * 8192 + 1)


def test_rows_of_a_batch_share_its_time() -> None:
    """The first row that is told of a step has all of its time, the others none."""
    compute = ComputeCost()
    for start in range(0, 4096, CHUNK):
        for row in range(4):
            compute.add(start, CHUNK, 0.0 if row else 4 * CHUNK * 1e-3)
    cost = compute.cost()
    assert cost is not None
    assert cost.seconds(0, 4096) == pytest.approx(4.096, rel=0.05)


def test_a_device_that_became_slow_is_known_as_slow_soon() -> None:
    compute = learned(TokenCost(1e-4, 0.0, 8192))
    for start in range(0, 2 * RECENT_TOKENS, CHUNK):
        compute.add(start % 8192, CHUNK, CHUNK * 1e-3)
    cost = compute.cost()
    assert cost is not None
    assert cost.seconds(0, 8192) > 8192 * 8e-4


def test_no_cost_is_ever_negative() -> None:
    compute = ComputeCost()
    compute.add(0, 2048, 0.001)
    compute.add(2048, 2048, 10.0)
    steep = compute.cost()
    compute = ComputeCost()
    compute.add(0, 2048, 10.0)
    compute.add(2048, 2048, 0.001)
    falling = compute.cost()
    for cost in (steep, falling):
        assert cost is not None
        assert min(cost.first, cost.growth) >= 0
        assert cost.seconds(0, 4096) == pytest.approx(10.0, rel=0.5)


def test_three_reads_are_evidence_and_fewer_are_none() -> None:
    cost = ReadCost()
    for _ in range(LEAST_READS - 1):
        cost.add(MIB, 1.0, now=0.0)
        assert cost.per_byte(MIB, now=0.0) is None
    cost.add(MIB, 1.0, now=0.0)
    assert cost.per_byte(MIB, now=0.0) == pytest.approx(1 / MIB)


def test_one_slow_moment_changes_nothing_and_one_quick_read_is_believed() -> None:
    cost = ReadCost()
    for _ in range(MOST_READS):
        cost.add(MIB, 1.0, now=0.0)
    cost.add(MIB, 60.0, now=1.0)
    assert cost.per_byte(MIB, now=1.0) == pytest.approx(1 / MIB)
    cost.add(MIB, 0.01, now=2.0)
    assert cost.per_byte(MIB, now=2.0) == pytest.approx(0.01 / MIB)


def test_a_disk_that_stays_slow_is_known_as_slow() -> None:
    cost = ReadCost()
    cost.add(MIB, 0.01, now=0.0)
    for _ in range(MOST_READS):
        cost.add(MIB, 1.0, now=1.0)
    assert cost.per_byte(MIB, now=1.0) == pytest.approx(1 / MIB)


def test_what_was_read_long_ago_says_nothing() -> None:
    cost = ReadCost()
    for _ in range(LEAST_READS):
        cost.add(MIB, 1.0, now=0.0)
    assert cost.per_byte(MIB, now=LASTS_SECONDS - 1) is not None
    assert cost.per_byte(MIB, now=LASTS_SECONDS) is None


def test_small_reads_say_nothing_of_large_ones_and_do_not_hide_them() -> None:
    """What opening files costs would pass for what their bytes cost."""
    cost = ReadCost()
    for _ in range(LEAST_READS):
        cost.add(64 * MIB, 1.0, now=0.0)
    for _ in range(2 * MOST_READS):
        cost.add(MIB, 1.0, now=0.0)
    assert cost.per_byte(LARGER * MIB, now=0.0) == pytest.approx(1 / MIB)
    assert cost.per_byte(64 * MIB, now=0.0) == pytest.approx(1 / (64 * MIB))
    assert cost.per_byte(LARGER * 64 * MIB + 1, now=0.0) is None
