"""As few connections as bring pages as fast as more would."""

from collections.abc import Callable

import pytest

from omlx_cache_storage.remote.lanes import AGAIN, SLICE_BYTES, Lanes


def _run(lanes: Lanes, rate: Callable[[int], float], slices: int) -> list[int]:
    """Bring slices at rates by width; return the widths."""
    widths = []
    for _ in range(slices):
        widths.append(lanes.width)
        lanes.note(SLICE_BYTES, SLICE_BYTES / rate(lanes.width))
    return widths


def test_where_each_connection_brings_its_share_all_are_used() -> None:
    widths = _run(Lanes(8, 2), lambda width: 100e6 * width, 12)
    assert widths[:3] == [2, 4, 8]
    assert set(widths[4:]) <= {8, 4}
    assert widths.count(8) > 6


def test_where_threads_only_fight_one_is_used() -> None:
    widths = _run(Lanes(8, 2), lambda width: 1e9 / width, 12)
    assert widths.count(1) >= 8
    assert 8 not in widths


def test_where_it_makes_no_difference_few_are_used() -> None:
    assert _run(Lanes(8, 2), lambda width: 1e9, 12).count(1) >= 8


@pytest.mark.parametrize("first", [1, 2, 8])
def test_the_best_is_found_from_wherever_it_begins(first: int) -> None:
    rates = {1: 1.0, 2: 1.8, 4: 2.5, 8: 2.0}
    widths = _run(Lanes(8, first), lambda width: rates[width], 12)
    assert widths[6:].count(4) >= 4


def test_a_network_that_changes_is_found_out_about() -> None:
    lanes = Lanes(8, 2)
    _run(lanes, lambda width: 1e9 / width, 10)
    widths = _run(lanes, lambda width: 1e8 * width, 6 * AGAIN)
    assert widths[-AGAIN:].count(8) > AGAIN // 2


@pytest.mark.parametrize("most", [1, 2, 3, 6, 8, 12])
def test_no_more_are_used_than_there_are(most: int) -> None:
    widths = _run(Lanes(most, 2), lambda width: 1e8 * width, 12)
    assert max(widths) == most
    assert min(widths) >= 1
