"""Restore points that a chain keeps beside the one in use: which, and at what price."""

from collections.abc import Mapping, Sequence

import pytest

from omlx_cache.adapters.base import PAGED, STATE, GroupSpec
from omlx_cache.restore.walk import LARGE, MOST, SHARE, fallbacks
from omlx_cache_storage.keys import BlockKey, KeyChain, as_tokens, namespace_digest
from omlx_cache_storage.page import PageId, PageInfo, Tail
from omlx_cache_storage.tiers import TierView

BLOCK, BLOCKS = 16, 64
END = BLOCK * BLOCKS
CHAIN = KeyChain(namespace_digest({"model": "none"}), as_tokens(range(END)), BLOCK)
PAGE = 1000
ROOMY = 10**9


class View(TierView):
    """A tier with whole blocks up to `reach`, and a state of so many bytes at each position."""

    def __init__(self, reach: int, states: Mapping[int, int], limit_bytes: int = ROOMY) -> None:
        self._limit_bytes = limit_bytes
        self._pages = {
            PageId(CHAIN.key(end), "paged"): PageInfo(end, BLOCK, PAGE, "cold")
            for end in range(BLOCK, reach + 1, BLOCK)
        } | {
            PageId(CHAIN.key(at), "state"): PageInfo(at, 0, nbytes, "cold")
            for at, nbytes in states.items()
        }
        self.find_all = lambda pages: [self._pages.get(page) for page in pages]

    @property
    def limit_bytes(self) -> int:
        return self._limit_bytes

    def tails_of(self, parents: Sequence[BlockKey]) -> set[Tail]:  # type: ignore[override]
        return set()

    def states_kept(self) -> list[int]:
        kept = fallbacks(CHAIN, (PAGED, STATE), self, END)
        return sorted(self._pages[page].position for page in kept if page.group == "state")


def states(nbytes: int, step: int = 2) -> dict[int, int]:
    return dict.fromkeys(range(BLOCK * step, END + 1, BLOCK * step), nbytes)


def test_a_model_that_trims_needs_none() -> None:
    assert fallbacks(CHAIN, (PAGED,), View(END, {}), END) == []


@pytest.mark.parametrize("reach", [0, BLOCK, END // 2 + 3 * BLOCK, END])
def test_the_deepest_point_that_a_tier_has_by_itself_is_kept(reach: int) -> None:
    costly = states(PAGE * BLOCKS)
    expected = [max((at for at in costly if at <= reach), default=0)] if reach >= 2 * BLOCK else []
    assert View(reach, costly).states_kept() == expected


@pytest.mark.parametrize("count", [1, 2, 3, MOST, 2 * MOST])
def test_more_of_them_are_evenly_spaced_and_take_a_share_of_the_chain(count: int) -> None:
    each = BLOCKS * PAGE // SHARE // count
    kept = View(END, states(each, step=1)).states_kept()
    assert len(kept) == min(count, MOST) + 1
    gaps = [after - before for before, after in zip([0, *kept], kept, strict=False)]
    assert max(gaps) - min(gaps) <= 2 * BLOCK


def test_a_chain_as_large_as_its_tier_keeps_them_whatever_they_take() -> None:
    costly = states(BLOCKS * PAGE)
    whole = 2 * BLOCKS * PAGE
    assert len(View(END, costly, limit_bytes=ROOMY).states_kept()) == 1
    assert len(View(END, costly, limit_bytes=whole).states_kept()) == LARGE + 1


def test_a_window_that_is_not_whole_is_no_point() -> None:
    window = GroupSpec("window", 3 * BLOCK)
    view = View(END, {})
    for end in (*range(BLOCK, 11 * BLOCK, BLOCK), *range(13 * BLOCK, 15 * BLOCK, BLOCK)):
        page = PageId(CHAIN.key(end), window.name)
        view._pages[page] = PageInfo(end, BLOCK, PAGE * BLOCKS, "cold")
    kept = fallbacks(CHAIN, (PAGED, window), view, END)
    ends = sorted(view._pages[page].position for page in kept if page.group == window.name)
    assert ends == [8 * BLOCK, 9 * BLOCK, 10 * BLOCK]
