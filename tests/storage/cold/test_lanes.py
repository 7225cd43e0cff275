"""Eviction among the pages of some namespaces, against sorting all of them each time."""

import sys
from collections.abc import Collection
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kit.examples import examples
from omlx_cache_storage import order
from omlx_cache_storage.cold import lanes
from omlx_cache_storage.cold.contents import Candidate, Contents, Victims
from omlx_cache_storage.cold.filling import Filling, filled
from omlx_cache_storage.format.names import ENTRY_BYTES, PageName, StoredPage
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId
from omlx_cache_storage.table import PageTable

SPACES = [BlockKey(bytes([number]) * 32) for number in range(5)]
POOLS = [frozenset(SPACES[:1]), frozenset(SPACES[1:3]), frozenset(SPACES[:3]), frozenset(SPACES)]
PAGES = range(10)
NUMBERS = st.integers(0, len(PAGES) - 1)
STAMPS = st.integers(1, 4)
WRITES = st.tuples(NUMBERS, st.integers(0, 3), st.integers(0, 3), STAMPS)


def _page(number: int) -> PageId:
    return PageId(BlockKey(number.to_bytes(32, "little")), "paged")


def _stored(number: int, space: int, nbytes: int) -> StoredPage:
    """A page whose position no other one has, so that the order has no ties."""
    return StoredPage(SPACES[space], PageName(_page(number), b"\0" * 8, number, 1, False), nbytes)


class Known(NamedTuple):
    """What the model knows of a page."""

    space: int
    nbytes: int
    stamp: int


class LanesMachine(RuleBasedStateMachine):
    few = 0

    def __init__(self) -> None:
        super().__init__()
        self.before = order.FEW, lanes.FEW
        order.FEW = lanes.FEW = self.few
        self.contents = Contents()
        self.model: dict[int, Known] = {}

    def teardown(self) -> None:
        order.FEW, lanes.FEW = self.before

    @initialize(pages=st.lists(WRITES, min_size=8, max_size=20))
    def begin(self, pages: list[tuple[int, int, int, int]]) -> None:
        self.write(pages)

    @rule(pages=st.lists(WRITES, min_size=1, max_size=3))
    def write(self, pages: list[tuple[int, int, int, int]]) -> None:
        for number, *known in pages:
            self.pop(number)
            self.model[number] = Known(*known)
            self.contents.add(_stored(number, *known[:2]), known[2])

    @rule(number=NUMBERS)
    def pop(self, number: int) -> None:
        known = self.model.pop(number, None)
        stored = self.contents.pop(_page(number))
        assert stored == (None if known is None else _stored(number, *known[:2]))

    @rule(numbers=st.lists(NUMBERS, max_size=8), stamp=STAMPS)
    def touch(self, numbers: list[int], stamp: int) -> None:
        moved = self.contents.touch(map(_page, numbers), stamp)
        for number in numbers:
            if _page(number) in moved:
                self.model[number] = self.model[number]._replace(stamp=stamp)

    @rule(numbers=st.lists(NUMBERS, max_size=8), stamp=st.integers(-1, 6))
    def place(self, numbers: list[int], stamp: int) -> None:
        self.contents.place(map(_page, numbers), stamp)
        for number in set(numbers) & set(self.model):
            self.model[number] = self.model[number]._replace(stamp=stamp)

    @rule()
    def restart(self) -> None:
        files = filled(
            (_stored(number, *known[:2]), known.stamp) for number, known in self.model.items()
        )
        self.contents = Contents()
        self.contents.fill(files)

    @rule(
        pool=st.sampled_from(POOLS),
        excess=st.sampled_from([0, 1, 1, ENTRY_BYTES + 2, 3 * ENTRY_BYTES, 6 * ENTRY_BYTES]),
        candidate=st.none() | st.tuples(NUMBERS, STAMPS),
        pinned=st.sets(NUMBERS, max_size=3),
        until=st.just(sys.maxsize) | STAMPS,
        evict=st.booleans(),
    )
    def make_room(
        self,
        pool: frozenset[BlockKey],
        excess: int,
        candidate: tuple[int, int] | None,
        pinned: set[int],
        until: int,
        evict: bool,
    ) -> None:
        wants = None if candidate is None else Candidate(_page(candidate[0]), *candidate)
        found = self.contents.victims(
            excess, wants, {_page(number) for number in pinned}.__contains__, until, pool
        )
        assert found == self.naive(pool, excess, wants, pinned, until)
        if evict and found.enough:
            for page in found.pages:
                self.pop(page.key[0])

    def naive(
        self,
        pool: Collection[BlockKey],
        excess: int,
        candidate: Candidate | None,
        pinned: Collection[int],
        until: int,
    ) -> Victims:
        pages: list[PageId] = []
        mine = {n: known for n, known in self.model.items() if SPACES[known.space] in pool}
        if excess <= 0 or excess > sum(known.nbytes + ENTRY_BYTES for known in mine.values()):
            return Victims(pages, excess <= 0)
        for number, known in sorted(mine.items(), key=lambda item: (item[1].stamp, -item[0])):
            if candidate is not None and _page(number) != candidate.page:
                if (known.stamp, -number) >= candidate.rank:
                    return Victims(pages, False, True)
                if until < known.stamp != candidate.stamp_ns:
                    return Victims(pages, False, True, known.stamp)
                if number in pinned:
                    continue
            pages.append(_page(number))
            excess -= known.nbytes + ENTRY_BYTES
            if excess <= 0:
                return Victims(pages, True)
        return Victims(pages, False)

    @invariant()
    def counts_what_each_namespace_takes(self) -> None:
        for number, space in enumerate(SPACES):
            taken = [k.nbytes + ENTRY_BYTES for k in self.model.values() if k.space == number]
            assert self.contents.nbytes_of(space) == sum(taken)
        self.contents.check_integrity()


class RestingMachine(LanesMachine):
    few = 256


TestCopiedAgainAndAgain = LanesMachine.TestCase
TestHardlyEverCopied = RestingMachine.TestCase
TestCopiedAgainAndAgain.settings = settings(max_examples=examples(25), stateful_step_count=40)
TestHardlyEverCopied.settings = settings(max_examples=examples(25), stateful_step_count=40)


class Looks:
    """Counts the rows that are looked at one by one, and the passes over the whole table."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows = self.passes = 0
        stamp_at, in_order = PageTable.stamp_at, PageTable.in_order

        def counted_stamp(table: PageTable, row: int) -> int:
            self.rows += 1
            return stamp_at(table, row)

        def counted_pass(table: PageTable) -> order.Rows:
            self.passes += 1
            return in_order(table)

        monkeypatch.setattr(PageTable, "stamp_at", counted_stamp)
        monkeypatch.setattr(PageTable, "in_order", counted_pass)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


def _two_tenants(count: int) -> Contents:
    """All pages of a large tenant are older than those of a small one."""
    contents, files = Contents(), Filling()
    for number in range(count):
        files.take(_stored(number, int(number >= count * 9 // 10), 0), number)
    contents.fill(files.finish()[0])
    return contents


def _replace(contents: Contents, number: int, within: frozenset[BlockKey]) -> None:
    """Add a page to the small tenant, and evict one of its pages for it."""
    wants = Candidate(_page(number), number, number)
    found = contents.victims(1, wants, within=within)
    assert found.enough
    for page in found.pages:
        stored = contents.pop(page)
        assert stored is not None
        assert stored.namespace in within
    contents.add(_stored(number, 1, 0), number)


def test_a_victim_costs_a_few_looks_however_many_pages_others_have(looks: Looks) -> None:
    count, pool = 20_000, POOLS[1]
    contents = _two_tenants(count)
    victims = 3 * (count // 10)
    for number in range(count, count + victims):
        _replace(contents, number, pool)
    # The pool was used up three times.
    assert looks.passes <= 4
    assert looks.rows <= 6 * victims


def test_pages_that_go_first_while_a_lane_is_used_up_do_so_and_cost_no_pass(looks: Looks) -> None:
    count, pool = 2_000, POOLS[1]
    contents = _two_tenants(count)
    for turn in range(150):
        contents.place([_page(count - 1 - turn)], -turn)
        found = contents.victims(1, within=pool)
        assert found.pages == [_page(count - 1 - turn)]
        if turn % 2:
            contents.pop(found.pages[0])
    assert looks.passes == 1


def test_uses_of_what_a_lane_has_cost_no_pass_however_often(looks: Looks) -> None:
    count, pool = 2_000, POOLS[1]
    contents = _two_tenants(count)
    mine = [_page(number) for number in range(count * 9 // 10, count)]
    assert contents.victims(1, within=pool).pages == mine[:1]
    for turn in range(50):
        contents.touch(mine[2 * turn : 2 * turn + 1], count + turn)
        (victim,) = contents.victims(1, within=pool).pages
        assert victim == mine[2 * turn + 1]
        contents.pop(victim)
    assert looks.passes == 1


def test_a_page_that_is_pinned_until_later_makes_new_ones_cost_no_pass_each(looks: Looks) -> None:
    count, pool = 2_000, POOLS[1]
    contents = _two_tenants(count)
    contents.place([_page(count - 1)], 10**18)
    for number in range(count, count + 1_000):
        _replace(contents, number, pool)
    assert looks.passes <= 8


@pytest.mark.parametrize("space", [0, 1])
def test_a_page_that_takes_anothers_row_and_stamp_has_its_own_place(space: int) -> None:
    """One that is none of the pool's is no victim; one that is has another depth."""
    contents = Contents()
    for number in (5, 6, 7):
        contents.add(_stored(number, 1, 0), 9)
    assert contents.victims(1, within=POOLS[1]).pages == [_page(7)]
    for old, new in ((6, 8), (8, 3)):
        contents.pop(_page(old))
        contents.add(_stored(new, space, 0), 9)
    left = [7, 5, 3] if space else [7, 5]
    found = contents.victims(len(left) * ENTRY_BYTES, within=POOLS[1])
    assert found == Victims([_page(number) for number in left], True)


def test_lanes_that_nobody_wants_any_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "FEW", 0)
    contents = _two_tenants(1_000)
    for number in range(300):
        others = [BlockKey(bytes([9]) * 28 + number.to_bytes(4, "big"))]
        contents.victims(1, within=frozenset([*SPACES[:2], *others]))
    kept = sum(map(len, contents._lanes._lanes.values()))
    assert 0 < kept <= lanes.MOST_COPIES * len(contents)
