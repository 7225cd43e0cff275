"""What another process stored is found by a look-up that would end short, in the same look-up: the
store is asked once whether something changed, and only then is the prompt walked once more."""

from collections.abc import Mapping, Sequence
from typing import cast

import pytest

from omlx_cache.adapters.base import PAGED
from omlx_cache.restore.lookup import RestoreGate, RestorePoint, find_restore_point
from omlx_cache_storage.keys import BlockKey, KeyChain, as_tokens, namespace_digest
from omlx_cache_storage.page import PageId, PageInfo, Tail
from omlx_cache_storage.remote.lookups import Asked, Inquiry
from omlx_cache_storage.tiers import Tiers

SIZE, BLOCKS = 16, 8
END = SIZE * BLOCKS
CHAIN = KeyChain(namespace_digest({"model": "none"}), as_tokens(range(END)), SIZE)


class Changing:
    """The first `known` blocks of a chain; `others` more once they were taken over, by a `refresh`
    or (`behind`) by another thread while the first walk was under way."""

    def __init__(self, known: int, others: int, *, behind: bool = False) -> None:
        self.generation = 0
        self.walks = self.asked = 0
        self._known, self._others, self._behind = known, others, behind

    def _take_over(self) -> bool:
        taken, self._known, self._others = bool(self._others), self._known + self._others, 0
        self.generation += taken
        return taken

    def refresh(self, timeout: float = 0.0) -> bool:
        self.asked += 1
        return False if self._behind else self._take_over()

    def find_all(self, pages: Sequence[PageId]) -> list[PageInfo | None]:
        ends = {PageId(CHAIN.key(end), PAGED.name): end for end in range(SIZE, END + 1, SIZE)}
        self.walks += pages[0] == PageId(CHAIN.key(SIZE), PAGED.name)
        known = self._known * SIZE
        found = [PageInfo(ends[p], SIZE, 100, "cold") if ends[p] <= known else None for p in pages]
        if self._behind:
            self._take_over()
        return found

    asks = False

    def ask(self, inquiry: Inquiry, timeout: float | None = None) -> Asked:
        raise AssertionError("there is nobody to ask")

    def hidden(self, pages: Sequence[PageId]) -> dict[PageId, str]:
        return {}

    def tails_of(self, parents: Sequence[BlockKey]) -> set[Tail]:
        return set()


class CountingGate(RestoreGate):
    """A gate that rejects nothing, and counts how often it was asked."""

    asked = 0

    def rejects(self, tokens: int, nbytes: Mapping[str, int]) -> str:
        self.asked += 1
        return ""


def look(view: Changing, gate: CountingGate | None = None) -> RestorePoint:
    return find_restore_point(CHAIN, (PAGED,), view, limit=END, tiers=cast(Tiers, view), gate=gate)


@pytest.mark.parametrize(
    ("view", "blocks", "asked", "walks"),
    [
        pytest.param(Changing(0, BLOCKS), BLOCKS, 1, 2, id="what another process stored"),
        pytest.param(Changing(3, BLOCKS - 3), BLOCKS, 1, 2, id="the rest by another process"),
        pytest.param(Changing(BLOCKS, 0), BLOCKS, 0, 1, id="known to its end"),
        pytest.param(Changing(3, 0), 3, 1, 1, id="a miss without a change"),
        pytest.param(Changing(2, 3), 5, 1, 2, id="short once more"),
        pytest.param(Changing(2, 3, behind=True), 5, 1, 2, id="taken over by another thread"),
    ],
)
def test_what_ends_short_asks_once_and_walks_again_if_there_was_news(
    view: Changing, blocks: int, asked: int, walks: int
) -> None:
    assert look(view).position == blocks * SIZE
    assert (view.asked, view.walks) == (asked, walks)
