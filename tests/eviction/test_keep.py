"""What `Keep` learns, what is no use to it, and what of it outlives the process."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.units import SECOND
from omlx_cache_storage.eviction.keep import (
    BUCKETS,
    ENOUGH_USES,
    MOST_PATIENCE_SECONDS,
    OWN_USE_NS,
    Keep,
    Learned,
    end_of,
    parse_learned,
)

START = 10**18
NOW = 10**18
SOUND: dict[str, Any] = {
    "version": 1,
    "uses": [1.0] * BUCKETS,
    "seen": 5000,
    "patience_seconds": 20.0,
}


def test_a_pinned_page_is_used_when_its_pin_has_ended_and_not_before() -> None:
    policy = Keep()
    policy.added(START, 10)
    until = START + 3600 * SECOND
    policy.moved(START, until, 10, used=False)
    policy.moved(until, START + 5 * SECOND, 10, used=True)
    assert policy.learned() is None
    policy.moved(START + 5 * SECOND, START + 8 * SECOND, 10, used=True)
    learned = policy.learned()
    assert learned.seen == 10


def _seen(gap_ns: int) -> int:
    policy = Keep()
    policy.added(NOW)
    policy.moved(NOW, NOW + gap_ns, 1, used=True)
    learned = policy.learned()
    return 0 if learned is None else learned.seen


def test_a_page_that_its_own_request_marks_again_was_not_used_again() -> None:
    assert _seen(OWN_USE_NS - 1) == 0


def test_a_page_that_the_next_request_marks_was_used_again() -> None:
    assert _seen(OWN_USE_NS) == 1


FIGURES = st.lists(st.floats(0, 1e9), min_size=BUCKETS, max_size=BUCKETS)


@given(FIGURES, st.integers(ENOUGH_USES, 10**9), st.floats(1.01, end_of(BUCKETS - 1)))
def test_a_document_says_what_was_learned(uses: list[float], seen: int, patience: float) -> None:
    learned = Learned(tuple(uses), seen, patience)
    found = parse_learned(json.loads(json.dumps(learned.document())))
    assert found.seen == seen
    assert found.patience_seconds == patience
    assert found.uses == pytest.approx(learned.uses, abs=1e-3)
    again = Keep(found)
    assert again.patience_ns == int(min(patience, MOST_PATIENCE_SECONDS) * 1e9)
    assert again.learned() is not None


@pytest.mark.parametrize(
    "changed",
    [
        {"version": 2},
        {"uses": [1.0] * (BUCKETS - 1)},
        {"uses": [1.0] * (BUCKETS - 1) + [float("nan")]},
        {"uses": [1.0] * (BUCKETS - 1) + [-1.0]},
        {"uses": [1.0] * (BUCKETS - 1) + [True]},
        {"uses": "1" * BUCKETS},
        {"seen": True},
        {"seen": -1},
        {"seen": 1.5},
        {"seen": 10**400},
        {"uses": [10**400] * BUCKETS},
        {"patience_seconds": float("inf")},
        {"patience_seconds": 1e9},
        {"patience_seconds": 10**400},
        {"patience_seconds": None},
        {"patience_seconds": True},
    ],
)
def test_what_no_policy_has_written_is_not_taken(changed: dict[str, Any]) -> None:
    assert parse_learned(SOUND) is not None
    assert parse_learned({**SOUND, **changed}) is None
