"""Counts in fixed buckets."""

from hypothesis import given
from hypothesis import strategies as st

from omlx_cache_storage.measures import BOUNDS, MEASURES, Histograms, together


@given(st.lists(st.floats(0, 1000), max_size=50))
def test_each_bucket_counts_the_values_that_are_no_larger_than_its_bound(
    values: list[float],
) -> None:
    histograms = Histograms()
    for value in values:
        histograms.observe("restore_seconds", value)
    known = together(histograms.observed(), {})["restore_seconds"]
    assert known.buckets == tuple(
        (bound, sum(value <= bound for value in values)) for bound in BOUNDS["restore_seconds"]
    )
    assert known.count == len(values)
    assert abs(known.sum - sum(values)) < 1e-6


def test_every_measure_is_there_before_anything_was_observed() -> None:
    first, second = Histograms(), Histograms()
    second.observe("page_read_seconds", 0.5)
    known = together(first.observed(), second.observed())
    assert set(known) == set(MEASURES)
    assert known["page_read_seconds"].count == 1
    assert known["held_seconds"].to_dict() == {
        "buckets": [[bound, 0] for bound in BOUNDS["held_seconds"]],
        "sum": 0.0,
        "count": 0,
    }
