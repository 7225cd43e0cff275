"""The record of pages that left: bounded, and it tells how each one did."""

from omlx_cache_storage.events import Departures
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId


def page(number: int, group: str = "paged") -> PageId:
    return PageId(BlockKey(number.to_bytes(32, "little")), group)


def test_a_page_that_left_is_told_with_how_and_when() -> None:
    departures = Departures()
    departures.note([page(1)], "disk")
    found = departures.find(page(1))
    assert found is not None
    assert found.how == "disk"
    assert found.at > 1_700_000_000
    assert departures.find(page(2)) is None
    assert departures.find(page(1, "state")) is None


def test_the_last_way_out_counts() -> None:
    departures = Departures()
    for how in ("disk", "memory", "removed", "damaged"):
        departures.note([page(1)], how)
        found = departures.find(page(1))
        assert found is not None
        assert found.how == how


def test_the_oldest_are_forgotten_and_that_is_known() -> None:
    departures = Departures(most=100)
    departures.note(map(page, range(99)), "disk")
    assert not departures.forgetful
    assert all(departures.find(page(number)) for number in range(99))
    departures.note(map(page, range(99, 250)), "disk")
    assert departures.forgetful
    assert departures.find(page(0)) is None
    assert all(departures.find(page(number)) for number in range(200, 250))
