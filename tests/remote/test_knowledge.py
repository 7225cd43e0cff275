"""What is known of a store lasts for a while, is bounded, and gives way to what is found out."""

from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId, PageInfo, Tail
from omlx_cache_storage.remote.envelope import TailMember
from omlx_cache_storage.remote.knowledge import (
    ABSENT_SECONDS,
    KNOWN_SECONDS,
    SHUNNED_SECONDS,
    Knowledge,
)

SPACE = BlockKey(b"n" * 32)


class _Rig:
    def __init__(self, most: int = 100) -> None:
        self.now = 1000.0
        self.known = Knowledge(lambda: self.now, most)

    def note(self, *numbers: int, held: int = 16, wire_bytes: int = 500) -> list[PageId]:
        pages = [(_page(n), PageInfo(n * 16, held, 400, "remote"), wire_bytes) for n in numbers]
        return self.known.note(SPACE, pages)

    def has(self, *numbers: int) -> list[bool]:
        return [info is not None for info in self.known.find_all([_page(n) for n in numbers])]


def _page(number: int) -> PageId:
    return PageId(BlockKey(number.to_bytes(32, "big")), "paged")


def _member(number: int, position: int) -> TailMember:
    return TailMember(_page(number).key, position, 3, 400, 500, "paged")


def test_what_is_noted_is_found_for_a_while() -> None:
    rig = _Rig()
    assert rig.note(1, 2) == [_page(1), _page(2)]
    assert rig.has(1, 2, 3) == [True, True, False]
    rig.now += KNOWN_SECONDS - 1
    assert rig.has(1) == [True]
    rig.now += 2
    assert rig.has(1) == [False]
    assert rig.known.seen(_page(1)) is None


def test_only_what_changed_is_news() -> None:
    rig = _Rig()
    rig.note(1)
    assert rig.note(1) == []
    assert rig.note(1, held=8) == [_page(1)]


def test_a_length_once_known_stays_known() -> None:
    rig = _Rig()
    rig.note(1)
    rig.note(1, wire_bytes=0)
    seen = rig.known.seen(_page(1))
    assert seen is not None
    assert (seen.wire_bytes, seen.namespace) == (500, SPACE)


def test_what_is_absent_is_asked_for_again_soon() -> None:
    rig = _Rig()
    assert rig.known.unknown([_page(1)]) == [_page(1)]
    rig.known.note_absent([_page(1)])
    assert rig.known.unknown([_page(1)]) == []
    rig.now += ABSENT_SECONDS + 0.1
    assert rig.known.unknown([_page(1)]) == [_page(1)]


def test_a_page_found_to_be_gone_is_known_no_more_and_one_found_again_is() -> None:
    rig = _Rig()
    rig.note(1, 2)
    rig.known.note_absent([_page(1), _page(3)], "remote_lost")
    assert rig.has(1, 2) == [False, True]
    assert rig.known.why_absent([_page(1), _page(2)]) == {_page(1): "remote_lost"}
    assert rig.known.is_shunned(_page(1))
    rig.now += ABSENT_SECONDS + 0.1
    # It is asked for, and not believed on the word of others.
    assert rig.known.unknown([_page(1)]) == [_page(1)]
    assert rig.known.is_shunned(_page(1))
    rig.note(1)
    assert rig.has(1) == [True]
    assert rig.known.why_absent([_page(1)]) == {}
    assert not rig.known.is_shunned(_page(1))


def test_a_bad_page_is_shunned_for_long_and_not_for_ever() -> None:
    rig = _Rig()
    rig.known.note_absent([_page(1)], "corrupt", SHUNNED_SECONDS)
    rig.now += SHUNNED_SECONDS - 1
    assert rig.known.unknown([_page(1)]) == []
    rig.now += 2
    assert rig.known.unknown([_page(1)]) == [_page(1)]
    assert rig.known.why_absent([_page(1)]) == {}


def test_tails_are_found_for_a_while_and_asked_for_again_sooner() -> None:
    rig = _Rig()
    parent = _page(7).key
    assert rig.known.members_of(parent) is None
    rig.known.note_tails(parent, [_member(1, 115)])
    assert rig.known.tails_of([parent, _page(8).key]) == {Tail(115, "paged")}
    assert rig.known.members_of(parent) == {_member(1, 115)}
    rig.now += ABSENT_SECONDS + 0.1
    assert rig.known.members_of(parent) is None
    assert rig.known.tails_of([parent]) == {Tail(115, "paged")}
    rig.now += KNOWN_SECONDS
    assert rig.known.tails_of([parent]) == set()


def test_ones_own_tail_is_known_and_the_others_are_asked_for_all_the_same() -> None:
    rig = _Rig()
    parent = _page(7).key
    rig.known.note_tails(parent, [_member(1, 115)], whole=False)
    rig.known.note_tails(parent, [_member(2, 117)], whole=False)
    assert rig.known.tails_of([parent]) == {Tail(115, "paged"), Tail(117, "paged")}
    assert rig.known.members_of(parent) is None
    rig.now += KNOWN_SECONDS + 1
    rig.known.note_tails(parent, [_member(3, 118)], whole=False)
    assert rig.known.tails_of([parent]) == {Tail(118, "paged")}


def test_a_tail_that_is_gone_is_told_of_no_more() -> None:
    rig = _Rig()
    parent = _page(7).key
    rig.known.note_tails(parent, [_member(1, 115), _member(2, 117)])
    rig.known.note_absent([_page(1)], "remote_lost")
    assert rig.known.tails_of([parent]) == {Tail(117, "paged")}


def test_it_remembers_the_latest_ones_and_no_more() -> None:
    rig = _Rig(most=10)
    rig.note(*range(15))
    assert rig.has(4, 5, 14) == [False, True, True]
    assert len(rig.known) == 10
    rig.known.note_absent([_page(n) for n in range(100, 115)])
    assert rig.known.unknown([_page(104), _page(105)]) == [_page(104)]
    for number in range(15):
        rig.known.note_tails(_page(number).key, [_member(1, 115)])
    assert rig.known.tails_of([_page(4).key]) == set()
    assert rig.known.tails_of([_page(5).key]) == {Tail(115, "paged")}


def test_what_is_forgotten_is_asked_for_at_once() -> None:
    rig = _Rig()
    rig.note(1)
    rig.known.forget(_page(1))
    rig.known.forget(_page(2))
    assert rig.known.unknown([_page(1)]) == [_page(1)]


def test_what_ends_inside_blocks_is_bounded_however_much_ends_in_one() -> None:
    rig = _Rig(most=10)
    one, two = (_page(n).key for n in (1, 2))
    rig.known.note_tails(one, [_member(n, n) for n in range(1, 7)])
    rig.known.note_tails(one, [_member(n, n) for n in range(1, 7)])
    assert len(rig.known.tails_of([one])) == 6
    rig.known.note_tails(two, [_member(n, n) for n in range(1, 7)])
    assert rig.known.tails_of([one]) == set()
    assert len(rig.known.tails_of([two])) == 6
    rig.known.note_tails(two, [_member(n, n) for n in range(1, 5)])
    rig.known.note_tails(one, [_member(n, n) for n in range(1, 7)])
    assert len(rig.known.tails_of([one])) == 6
    assert len(rig.known.tails_of([two])) == 4
    rig.known.note_tails(one, [_member(n, n) for n in range(1, 12)])
    assert rig.known.tails_of([one, two]) == set()


def test_a_page_that_was_lost_stays_so_when_it_is_found_to_be_absent_too() -> None:
    rig = _Rig()
    rig.note(1)
    rig.known.note_absent([_page(1)], "remote_lost")
    rig.now += ABSENT_SECONDS + 1
    rig.known.note_absent([_page(1)])
    assert rig.known.why_absent([_page(1)]) == {_page(1): "remote_lost"}
    assert rig.known.unknown([_page(1)]) == []
    rig.now += SHUNNED_SECONDS
    assert rig.known.why_absent([_page(1)]) == {}


def test_a_page_that_was_another_secrets_and_is_absent_may_be_written() -> None:
    rig = _Rig()
    rig.known.note_absent([_page(1)], "remote_foreign")
    rig.known.note_absent([_page(1)])
    assert rig.known.why_absent([_page(1)]) == {}


def test_what_was_lost_lately_is_not_taken_to_be_there_on_the_word_of_others() -> None:
    rig = _Rig()
    rig.note(1)
    rig.known.note_absent([_page(2)], "remote_lost")
    rig.now += ABSENT_SECONDS + 1
    assert rig.known.unknown([_page(1), _page(2), _page(3)]) == [_page(2), _page(3)]
    assert [rig.known.is_shunned(_page(n)) for n in (1, 2, 3)] == [False, True, False]
