"""What was learned outlives the process, and a hostile file is no more than none."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx_cache_storage.eviction.ages import BUCKETS, Learned, end_of, parse_learned
from omlx_cache_storage.eviction.keep import ENOUGH_USES, MOST_PATIENCE_SECONDS, Keep

FIGURES = st.lists(st.floats(0, 1e9), min_size=BUCKETS, max_size=BUCKETS)


@given(FIGURES, st.integers(ENOUGH_USES, 10**9), st.floats(1.01, end_of(BUCKETS - 1)))
def test_a_document_says_what_was_learned(uses: list[float], seen: int, patience: float) -> None:
    learned = Learned(tuple(uses), seen, patience)
    found = parse_learned(json.loads(json.dumps(learned.document())))
    assert found is not None
    assert found.seen == seen
    assert found.patience_seconds == patience
    assert found.uses == pytest.approx(learned.uses, abs=1e-3)
    again = Keep(found)
    assert again.patience_ns == int(min(patience, MOST_PATIENCE_SECONDS) * 1e9)
    assert again.learned() is not None


SOUND: dict[str, Any] = {
    "version": 1,
    "uses": [1.0] * BUCKETS,
    "seen": 5000,
    "patience_seconds": 20.0,
}


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
