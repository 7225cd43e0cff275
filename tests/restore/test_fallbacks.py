"""Restore points that a chain keeps beside the one in use: which, and at what price."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from omlx_cache.adapters.base import PAGED, STATE
from omlx_cache.restore.pending import MOST, SHARE, fallbacks
from omlx_cache_storage.keys import BlockKey, KeyChain, as_tokens, namespace_digest
from omlx_cache_storage.page import PageId, PageInfo, Tail

BLOCK, BLOCKS = 16, 64
END = BLOCK * BLOCKS
CHAIN = KeyChain(namespace_digest({"model": "none"}), as_tokens(range(END)), BLOCK)
PAGE = 1000
ROOMY = 10**9


class Tier:
    """A tier with whole blocks up to `reach`, and a state of so many bytes at each position."""

    def __init__(self, reach: int, states: Mapping[int, int], limit_bytes: int = ROOMY) -> None:
        self.limit_bytes = limit_bytes
        self._pages = {
            PageId(CHAIN.key(end), "paged"): PageInfo(end, BLOCK, PAGE, "cold")
            for end in range(BLOCK, reach + 1, BLOCK)
        } | {
            PageId(CHAIN.key(at), "state"): PageInfo(at, 0, nbytes, "cold")
            for at, nbytes in states.items()
        }

    def find_all(self, pages: Sequence[PageId]) -> list[PageInfo | None]:
        return [self._pages.get(page) for page in pages]

    def tails_of(self, parents: Sequence[BlockKey]) -> set[Tail]:
        return set()

    def states_kept(self) -> list[int]:
        itself: Any = self
        kept = fallbacks(CHAIN, (PAGED, STATE), [itself], END)
        return sorted(self._pages[page].position for page in kept if page.group == "state")


def states(nbytes: int, step: int = 2) -> dict[int, int]:
    return dict.fromkeys(range(BLOCK * step, END + 1, BLOCK * step), nbytes)


@pytest.mark.parametrize("reach", [0, BLOCK, END // 2 + 3 * BLOCK, END])
def test_the_deepest_point_that_a_tier_has_by_itself_is_kept(reach: int) -> None:
    costly = states(PAGE * BLOCKS)
    expected = [max((at for at in costly if at <= reach), default=0)] if reach >= 2 * BLOCK else []
    assert Tier(reach, costly).states_kept() == expected


@pytest.mark.parametrize("count", [1, 2, 3, MOST, 2 * MOST])
def test_more_of_them_are_evenly_spaced_and_take_a_share_of_the_chain(count: int) -> None:
    each = BLOCKS * PAGE // SHARE // count
    kept = Tier(END, states(each, step=1)).states_kept()
    assert len(kept) == min(count, MOST) + 1
    gaps = [after - before for before, after in zip([0, *kept], kept, strict=False)]
    assert max(gaps) - min(gaps) <= 2 * BLOCK
