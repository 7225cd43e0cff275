"""Overlapping work counts once."""

from hypothesis import given
from hypothesis import strategies as st

from omlx_cache_storage.measures import MOST_SPANS, Intervals

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
