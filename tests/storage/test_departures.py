"""The record of pages that left: bounded, and it tells how each one did."""

from omlx_cache_storage.events import Departures
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId


def page(number: int, group: str = "paged") -> PageId:
    return PageId(BlockKey(number.to_bytes(32, "little")), group)


def test_the_oldest_are_forgotten_and_that_is_known() -> None:
    departures = Departures(most=100)
    departures.note(map(page, range(99)), "disk")
    assert not departures.forgetful
    assert all(departures.find(page(number)) for number in range(99))
    departures.note(map(page, range(99, 250)), "disk")
    assert departures.forgetful
    assert departures.find(page(0)) is None
    assert all(departures.find(page(number)) for number in range(200, 250))
