"""Who holds a page's tokens: one alone, several at once, or nobody any more."""

from collections.abc import Iterable

import pytest

from omlx_cache_storage import live as live_module
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.live import LiveHold, LivePages
from omlx_cache_storage.page import PageId

PAGES = [PageId(BlockKey(bytes([n]) * 32), "kv") for n in range(8)]


class Dropped(list[PageId]):
    """What a tier was asked to let go."""

    def __call__(self, pages: Iterable[PageId]) -> None:
        self.extend(pages)


def hold(live: LivePages, pages: Iterable[PageId], *, waiting: bool = False) -> LiveHold:
    held = LiveHold(live, Dropped(), waiting=waiting)
    held.add(pages)
    return held


def spare(live: LivePages) -> list[int]:
    return [n for n, page in enumerate(PAGES) if live.is_spare(page)]


def test_what_one_sequence_holds_is_spare_until_it_ends() -> None:
    live = LivePages()
    held = hold(live, PAGES[:3])
    held.add(PAGES[2:4])
    assert spare(live) == [0, 1, 2, 3]
    held.end()
    held.end()
    held.add(PAGES[:3])
    assert spare(live) == []
    again = hold(live, PAGES[:1])
    assert spare(live) == [0]
    again.end()


def test_what_two_had_in_common_at_once_is_never_spare_again() -> None:
    live = LivePages()
    first, second = hold(live, PAGES[:4]), hold(live, PAGES[2:6])
    assert spare(live) == [0, 1, 4, 5]
    second.end()
    assert spare(live) == [0, 1]
    first.end()
    hold(live, PAGES[:6])
    assert spare(live) == [0, 1, 4, 5]


@pytest.mark.parametrize("order", [1, -1])
def test_what_a_request_waits_for_is_not_spare(order: int) -> None:
    live = LivePages()
    for waiting in (True, False)[::order]:
        hold(live, PAGES[:2], waiting=waiting)
    hold(live, PAGES[2:3], waiting=True)
    assert spare(live) == []
    assert [live.is_wanted(page) for page in PAGES[:4]] == [True, True, False, False]


def test_a_request_that_waits_drops_nothing_and_a_sequence_what_is_new_to_it() -> None:
    live, dropped = LivePages(), Dropped()
    LiveHold(live, dropped, waiting=True).add(PAGES[:2])
    assert dropped == []
    held = LiveHold(live, dropped)
    held.add(PAGES[3:5])
    held.add(PAGES[4:6])
    assert sorted(dropped) == PAGES[3:6]


def test_only_so_many_shared_pages_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "REMEMBERED", 3)
    live = LivePages()
    live.share(PAGES[:5])
    hold(live, PAGES[:5])
    assert spare(live) == [0, 1]
