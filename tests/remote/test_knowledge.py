"""What is known of a store lasts for a while, is bounded, and gives way to what is found out."""

import pytest

from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId, PageInfo, Tail
from omlx_cache_storage.remote import knowledge
from omlx_cache_storage.remote.knowledge import (
    ABSENT_SECONDS,
    KNOWN_SECONDS,
    Knowledge,
)

SPACE = BlockKey(b"n" * 32)


class _KnowingTier:
    def __init__(self, most: int = 100) -> None:
        self.now = 1000.0
        self.known = Knowledge(lambda: self.now, most)

    def note(self, *numbers: int, held: int = 16, wire_bytes: int = 500) -> list[int]:
        """Note pages; return those that are news."""
        infos = {n: PageInfo(n * 16, held, 400, "remote") for n in numbers}
        return [n for n in numbers if self.known.note(SPACE, _page(n), infos[n], wire_bytes)]

    def assume(self, number: int) -> bool:
        return self.known.assume(SPACE, _page(number), PageInfo(number * 16, 16, 400, "remote"))

    def has(self, *numbers: int) -> list[bool]:
        return [info is not None for info in self.known.find_all([_page(n) for n in numbers])]


def _page(number: int) -> PageId:
    return PageId(BlockKey(number.to_bytes(32, "big")), "paged")


def test_the_word_of_others_says_nothing_of_a_page_that_was_seen_or_lost() -> None:
    rig = _KnowingTier()
    rig.note(1)
    rig.known.note_absent([_page(2)], "remote_lost")
    assert [rig.assume(n) for n in (1, 2, 3)] == [False, False, True]
    lengths = [seen and seen.wire_bytes for n in (1, 2, 3) for seen in [rig.known.seen(_page(n))]]
    assert lengths == [500, None, 0]
    assert rig.known.why_absent([_page(1), _page(2)]) == {_page(2): "remote_lost"}
    rig.now += ABSENT_SECONDS + 0.1
    # It is asked for, and not believed on the word of others.
    assert rig.known.unknown([_page(1), _page(2)]) == [_page(2)]
    assert not rig.assume(2)
    # Nor is it news that it is absent.
    rig.known.note_absent([_page(2)])
    assert rig.known.why_absent([_page(2)]) == {_page(2): "remote_lost"}
    assert rig.known.unknown([_page(2)]) == []
    rig.note(2)
    assert rig.has(2) == [True]
    assert rig.known.why_absent([_page(2)]) == {}
    rig.now += KNOWN_SECONDS + 1
    assert rig.assume(2)


def test_it_remembers_the_latest_ones_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knowledge, "MOST_TAILS", 10)
    rig = _KnowingTier(most=10)
    rig.note(*range(15))
    assert rig.has(4, 5, 14) == [False, True, True]
    assert len(rig.known) == 10
    rig.known.note_absent([_page(n) for n in range(100, 115)])
    assert rig.known.unknown([_page(104), _page(105)]) == [_page(104)]
    for number in range(15):
        for position in (115, 117):
            rig.known.note_tails(_page(number).key, [Tail(position, "paged")])
    assert rig.known.tails_of([_page(4).key]) == set()
    both = {Tail(115, "paged"), Tail(117, "paged")}
    assert rig.known.tails_of([_page(5).key, _page(4).key]) == both
