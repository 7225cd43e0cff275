"""The index of pages and their eviction order, against a plain dictionary."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kit.examples import examples
from omlx_cache_storage import order
from omlx_cache_storage.index import PageIndex
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.order import FURTHEST
from omlx_cache_storage.page import PageId, Tail
from omlx_cache_storage.table import EntryTable, PageTable

GROUPS = ("paged", "window", "state")


def _key(number: int) -> BlockKey:
    return BlockKey(number.to_bytes(32, "little"))


def _page(number: int) -> PageId:
    return PageId(_key(number), "paged")


PAGES = [PageId(_key(number // 3), GROUPS[number % 3]) for number in range(24)]
NUMBERS = st.integers(0, len(PAGES) - 1)
STAMPS = st.integers(1, 6)


@pytest.fixture(params=[0, 256])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the order be merged again and again once, and once hardly ever."""
    monkeypatch.setattr(order, "FEW", request.param)


def _hint(parent: BlockKey) -> bytes:
    return parent[:8]


def _shown(table: PageTable, most: int = 1 << 30) -> list[PageId]:
    seen: list[PageId] = []
    table.visit(lambda page: (seen.append(page), len(seen) < most)[1])
    return seen


class TableMachine(RuleBasedStateMachine):
    """A page number's position is part of its id, so the order has few ties: by (stamp, depth)."""

    few = 0

    def __init__(self) -> None:
        super().__init__()
        self.before = order.FEW
        order.FEW = self.few
        self.table: EntryTable[int] = EntryTable()
        self.model: dict[PageId, tuple[int, int, int]] = {}

    def teardown(self) -> None:
        order.FEW = self.before

    @rule(number=NUMBERS, position=st.integers(1, 9), stamp=STAMPS)
    def put(self, number: int, position: int, stamp: int) -> None:
        page = PAGES[number]
        assert self.table.take(page) == (self.model.pop(page, (0, 0, None))[2])
        self.table.put(page, number, position, _hint(_key(number % 4)), number % 2 == 0, stamp)
        self.model[page] = (stamp, -position, number)

    @rule(numbers=st.lists(NUMBERS, max_size=12), stamp=STAMPS)
    def touch(self, numbers: list[int], stamp: int) -> None:
        pages = [PAGES[number] for number in numbers]
        held = [page for page in pages if page in self.model]
        touched = self.table.touch(pages, stamp)
        assert touched.pages == held
        assert touched.before.tolist() == [self.model[page][0] for page in dict.fromkeys(held)]
        assert sum(count for _, count in touched.moves()) == len(set(held))
        for page in held:
            self.model[page] = (stamp, *self.model[page][1:])

    @rule(number=NUMBERS)
    def take(self, number: int) -> None:
        page = PAGES[number]
        assert self.table.take(page) == self.model.pop(page, (0, 0, None))[2]

    @rule(most=st.integers(1, 30))
    def visit(self, most: int) -> None:
        seen = _shown(self.table, most)
        assert len(seen) == len(set(seen)) == min(most, len(self.model))
        ranks = sorted(rank[:2] for rank in self.model.values())
        assert [self.model[page][:2] for page in seen] == ranks[:most]

    @invariant()
    def is_the_model(self) -> None:
        table, model = self.table, self.model
        assert len(table) == len(model)
        assert set(table) == set(model)
        assert table.get_all(PAGES) == [model.get(page, (0, 0, None))[2] for page in PAGES]
        for group in GROUPS:
            some = [page for page in PAGES if page.group == group]
            assert table.get_all(some) == [table.get(page) for page in some]
        assert [model[page][:2] for page in table.ordered()] == sorted(
            r[:2] for r in model.values()
        )
        for page, (stamp, depth, _) in model.items():
            assert table.stamp(page) == stamp
            assert table.leaves_before(page, -depth, stamp + 1)
            assert not table.leaves_before(page, -depth, stamp)
        for parent in range(4):
            tails = {
                Tail(-depth, page.group)
                for page, (_, depth, number) in model.items()
                if number % 4 == parent and number % 2 == 0
            }
            assert table.tails_of([_key(parent)]) == tails
        assert sorted(table.entries()) == sorted(number for _, _, number in model.values())
        table.check_integrity()


class RestingMachine(TableMachine):
    few = 256


TestMergedAgainAndAgain = TableMachine.TestCase
TestHardlyEverMerged = RestingMachine.TestCase
TestMergedAgainAndAgain.settings = settings(max_examples=examples(20), stateful_step_count=40)
TestHardlyEverMerged.settings = settings(max_examples=examples(20), stateful_step_count=40)


@given(st.lists(st.tuples(st.integers(0, 9), STAMPS), max_size=40), st.lists(NUMBERS, max_size=40))
def test_a_filled_table_goes_on_like_one_that_grew(
    files: list[tuple[int, int]], touched: list[int]
) -> None:
    filled, grown = PageTable(), PageTable()
    positions, stamps = np.array(files, np.int64).reshape(-1, 2).T
    pages = [_page(number) for number in range(len(files))]
    tails = np.array([number % 5 == 0 for number in range(len(files))], np.bool_)
    hints = np.arange(len(files), dtype=np.uint64)
    index = PageIndex()
    index.grow(len(pages))
    for row, page in enumerate(pages):
        index.add(page, row)
    filled.fill(index, hints, tails, positions, stamps)
    for row, (page, (position, stamp)) in enumerate(zip(pages, files, strict=True)):
        grown.add(page, position, row.to_bytes(8, "big"), bool(tails[row]), stamp)
    for step, number in enumerate(touched):
        for table in (filled, grown):
            table.touch([_page(number), _page(number + 1)], 3 + step % 4)
            if step % 3 == 0:
                table.pop(_page(number + 2))
    place = [(t.stamp(page), page) for t in (filled, grown) for page in t]
    assert sorted(place[: len(filled)]) == sorted(place[len(filled) :])
    for table in (filled, grown):
        ranks = [(table.stamp(p), -files[p.key[0]][0]) for p in _shown(table)]
        assert ranks == sorted(ranks)
        assert len(ranks) == len(filled)
        table.check_integrity()


@pytest.fixture
def eight(few: None) -> PageTable:
    table = PageTable()
    for number in range(8):
        table.add(_page(number), number, b"", False, 1)
    return table


def test_many_touches_of_few_pages_take_no_more_memory(eight: PageTable) -> None:
    for stamp in range(10_000):
        eight.touch(map(_page, range(8)), stamp)
    assert eight._order.places < 400


def test_pages_that_come_and_go_take_no_more_memory(few: None) -> None:
    table = PageTable()
    for number in range(10_000):
        table.add(_page(number), number, b"", True, number)
        if number >= 8:
            assert table.pop(_page(number - 8)) is not None
    assert table._order.places < 400
    assert table._index.room < 100
    assert len(table) == len(table._tails) or len(table._tails) == 1


def test_a_visitor_that_raises_loses_no_page(eight: PageTable) -> None:
    def explode(page: PageId) -> bool:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        eight.visit(explode)
    assert _shown(eight) == [_page(number) for number in reversed(range(8))]


def test_what_is_used_while_its_stamp_is_at_the_front_keeps_its_depth(eight: PageTable) -> None:
    assert _shown(eight, 1) == [_page(7)]
    eight.add(_page(9), 9, b"", False, 1)
    assert _shown(eight, 2) == [_page(9), _page(7)]
    eight.touch([_page(7)], 2)
    eight.touch([_page(7)], 1)
    eight.add(_page(20), 5, b"", False, 1)
    numbers = [page.key[0] for page in _shown(eight)]
    assert numbers[:3] == [9, 7, 6]
    assert sorted(numbers[3:5]) == [5, 20]
    assert numbers[5:] == [4, 3, 2, 1, 0]


def test_stamps_of_any_size_have_a_place(eight: PageTable) -> None:
    eight.touch([_page(1)], 1 << 90)
    eight.touch([_page(2)], -(1 << 90))
    shown = _shown(eight)
    assert (shown[0], shown[-1]) == (_page(2), _page(1))
    assert eight.stamp(_page(1)) == FURTHEST


def test_tails_of_one_boundary_come_and_go_one_by_one() -> None:
    table = PageTable()
    parent = BlockKey(b"p" * 32)
    for number in (1, 2, 3):
        table.add(_page(number), 10 + number, parent[:8], True, 1)
    left = {11, 12, 13}
    for number in (2, 3, 1):
        assert table.tails_of([parent]) == {Tail(position, "paged") for position in left}
        table.pop(_page(number))
        left.discard(10 + number)
    assert table.tails_of([parent]) == set()
    table.add(_page(4), 20, parent[:8], True, 1)
    assert table.tails_of([parent]) == {Tail(20, "paged")}


def _chain(table: PageTable, numbers: Iterator[int] | range, root: BlockKey) -> list[BlockKey]:
    keys = []
    for position, number in enumerate(numbers):
        table.add(_page(number), position, root[:8], False, 1)
        root = _key(number)
        keys.append(root)
    return keys


def test_branches_are_where_other_chains_leave_one() -> None:
    table = PageTable()
    root = BlockKey(b"r" * 32)
    trunk = _chain(table, range(10), root)
    assert table.branches(trunk) == set()
    branch = _chain(table, range(20, 23), trunk[4])
    assert table.branches([root, *trunk]) == {trunk[4]}
    assert table.branches([root, *trunk[:5], *branch]) == {trunk[4]}
    _chain(table, range(30, 31), root)
    assert table.branches([root, *trunk]) == {root, trunk[4]}
    for key in branch:
        table.pop(PageId(key, "paged"))
    assert table.branches([root, *trunk]) == {root}
    assert table.branches([]) == set()
