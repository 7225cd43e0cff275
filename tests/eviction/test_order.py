"""The index of pages and their eviction order, against a plain dictionary."""

from itertools import islice

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kit.examples import examples
from omlx_cache_storage.eviction import order
from omlx_cache_storage.eviction.order import OrderedPages, Record
from omlx_cache_storage.format.names import PageName, StoredPage, parent_hint
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId, Tail

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
    """Make the heap of stamps anew again and again once, and once hardly ever."""
    monkeypatch.setattr(order, "FEW", request.param)


def _of(page: PageId, position: int, hint: bytes, tail: bool) -> Record:
    return Record(StoredPage(_key(99), PageName(page, hint, position, 0, tail), 1))


class TableMachine(RuleBasedStateMachine):
    """A page number's position is part of its id, so the order has few ties: by (stamp, depth)."""

    few = 0

    def __init__(self) -> None:
        super().__init__()
        self.before = order.FEW
        order.FEW = self.few
        self.table: OrderedPages[Record] = OrderedPages()
        self.model: dict[PageId, tuple[int, int, Record]] = {}

    def teardown(self) -> None:
        order.FEW = self.before

    @rule(number=NUMBERS, position=st.integers(1, 9), stamp=STAMPS)
    def put(self, number: int, position: int, stamp: int) -> None:
        page = PAGES[number]
        self.take(number)
        record = _of(page, position, _key(number % 4)[:8], number % 2 == 0)
        self.table.add(record, stamp)
        self.model[page] = (stamp, -position, record)

    @rule(numbers=st.lists(NUMBERS, max_size=12), stamp=STAMPS)
    def touch(self, numbers: list[int], stamp: int) -> None:
        pages = [PAGES[number] for number in numbers]
        held = [page for page in pages if page in self.model]
        assert self.table.touch(pages, stamp) == held
        for page in held:
            self.model[page] = (stamp, *self.model[page][1:])

    @rule(numbers=st.lists(NUMBERS, max_size=12), stamp=STAMPS, latest=STAMPS)
    def touch_earlier(self, numbers: list[int], stamp: int, latest: int) -> None:
        for page in self.table.touch(map(PAGES.__getitem__, numbers), stamp, max(stamp, latest)):
            assert self.model[page][0] <= max(stamp, latest)
            self.model[page] = (stamp, *self.model[page][1:])

    @rule(number=NUMBERS)
    def take(self, number: int) -> None:
        page = PAGES[number]
        assert self.table.pop(page) is self.model.pop(page, (0, 0, None))[2]

    @rule(most=st.integers(1, 30))
    def visit(self, most: int) -> None:
        seen = [record.id for record in islice(self.table.in_order(), most)]
        assert len(seen) == len(set(seen)) == min(most, len(self.model))
        ranks = sorted(rank[:2] for rank in self.model.values())
        assert [self.model[page][:2] for page in seen] == ranks[:most]

    @invariant()
    def is_the_model(self) -> None:
        table, model = self.table, self.model
        assert len(table) == len(model)
        assert list(map(table.get, PAGES)) == [model.get(page, (0, 0, None))[2] for page in PAGES]
        for stamp, depth, record in model.values():
            assert record.rank == (stamp, depth)
        for parent in range(4):
            tails = {
                Tail(record.position, page.group)
                for page, (_, _, record) in model.items()
                if record.tail and record.hint == _key(parent)[:8]
            }
            assert set(table.tails.get(parent_hint(_key(parent)), ())) == tails
        assert set(table.records()) == {record for _, _, record in model.values()}
        table.check_integrity()


class RestingMachine(TableMachine):
    few = 256


TestMadeAnewAgainAndAgain = TableMachine.TestCase
TestHardlyEverMadeAnew = RestingMachine.TestCase
TestMadeAnewAgainAndAgain.settings = settings(max_examples=examples(20), stateful_step_count=40)
TestHardlyEverMadeAnew.settings = settings(max_examples=examples(20), stateful_step_count=40)


def test_pages_that_come_and_go_take_no_more_memory(few: None) -> None:
    table: OrderedPages[Record] = OrderedPages()
    for number in range(10_000):
        table.add(_of(_page(number), number, b"%d" % number, tail=True), number)
        if number >= 8:
            assert table.pop(_page(number - 8)) is not None
    assert len(table._heap) < 2 * order.FEW + 64
    assert len(table) == len(table.tails)


def test_many_short_prompts_make_no_look_up_longer() -> None:
    """All begin at the same boundary, and end at few positions behind it."""
    table, ends, parent = OrderedPages[Record](), range(1, 9), _key(7)
    for number in range(1000):
        name = PageName(_page(number), parent_hint(parent), ends[number % 8], 0, True)
        table.add(Record(StoredPage(_key(99), name, 1)), number + 1)
    assert table.tails == {parent_hint(parent): {Tail(end, "paged"): 125 for end in ends}}
    for number in range(8, 1000):
        table.pop(_page(number))
    table.check_integrity()
    table.pop(_page(0))
    assert table.tails == {parent_hint(parent): {Tail(end, "paged"): 1 for end in ends[1:]}}
