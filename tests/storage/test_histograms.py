"""Counts in fixed buckets."""

from hypothesis import given
from hypothesis import strategies as st

from omlx_cache_storage.measures import BOUNDS, Histograms


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
