"""The eviction order against a plain sorted list."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId
from omlx_cache_storage.recency import SUPERSEDED_NS, ChainRecency, Clock, age_seconds

PAGES = [PageId(BlockKey(bytes([n])), "paged") for n in range(8)]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "touch", "discard", "visit"]),
        st.lists(st.sampled_from(range(8)), min_size=1, max_size=4),
        st.integers(1, 5),
    ),
    max_size=60,
)


@given(STEPS)
def test_the_order_is_by_stamp_and_then_depth(steps: list[tuple[str, list[int], int]]) -> None:
    order = ChainRecency()
    model: dict[PageId, tuple[int, int]] = {}
    for what, numbers, stamp in steps:
        pages = [PAGES[number] for number in numbers]
        if what == "add":
            order.add(pages[0], numbers[0] + 1, stamp)
            model[pages[0]] = (stamp, -numbers[0] - 1)
        elif what == "touch":
            assert order.touch(pages, stamp) == [page for page in pages if page in model]
            for page in pages:
                if page in model:
                    model[page] = (stamp, model[page][1])
        elif what == "discard":
            order.discard(pages[0])
            model.pop(pages[0], None)
        else:
            seen: list[PageId] = []
            order.visit(lambda page, seen=seen, n=stamp: (seen.append(page), len(seen) < n)[1])
            assert seen == sorted(model, key=lambda page: (*model[page], page))[:stamp]
    assert order.ordered() == sorted(model, key=lambda page: (*model[page], page))
    assert len(order) == len(model)
    for page in model:
        assert order.stamp(page) == model[page][0]


def test_many_touches_of_few_pages_take_no_more_memory() -> None:
    order = ChainRecency()
    for page in PAGES:
        order.add(page, 1, 1)
    for stamp in range(10_000):
        order.touch(PAGES, stamp)
    assert len(order._heap) < 200


def test_a_visitor_that_raises_loses_no_page() -> None:
    order = ChainRecency()
    for number, page in enumerate(PAGES):
        order.add(page, number, 1)

    def explode(page: PageId) -> bool:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        order.visit(explode)
    seen: list[PageId] = []
    order.visit(lambda page: (seen.append(page), True)[1])
    assert seen == list(reversed(PAGES))


def test_stamps_rise_even_when_the_wall_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    first = clock.now()
    monkeypatch.setattr(time, "time_ns", lambda: first - 10**12)
    assert first < clock.now() < clock.now()


def test_later_demotions_leave_before_earlier_ones_and_before_everything_else() -> None:
    clock = Clock()
    earlier, later = clock.superseded(), clock.superseded()
    assert later < earlier <= SUPERSEDED_NS < clock.now()


def test_age_is_in_seconds_and_a_superseded_page_has_none() -> None:
    assert age_seconds(5 * 10**9, 8 * 10**9) == 3.0
    assert age_seconds(8 * 10**9, 5 * 10**9) == 0.0
    assert age_seconds(Clock().superseded(), 10**18) is None
