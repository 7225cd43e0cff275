"""A look-up costs as much as the chain is long, whatever was evicted. Counted, not timed."""

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest

from omlx_cache.adapters.base import PAGED, STATE, GroupSpec
from omlx_cache.restore import lookup
from omlx_cache.restore.lookup import RestoreGate, RestorePoint, find_restore_point
from omlx_cache_storage.keys import BlockKey, KeyChain, as_tokens, namespace_digest
from omlx_cache_storage.page import PageId, PageInfo, Tail

SIZE = 16
WINDOW = GroupSpec("window", 8 * SIZE)
SINKS = GroupSpec("window", 8 * SIZE, 3 * SIZE)
Keeps = Callable[[GroupSpec, int], bool]

LEFT: dict[str, tuple[tuple[GroupSpec, ...], Keeps]] = {
    "everything": ((PAGED, WINDOW), lambda group, block: True),
    "no window page": ((PAGED, WINDOW), lambda group, block: group is PAGED),
    "every other window page": ((PAGED, WINDOW), lambda group, block: group is PAGED or block % 2),
    "windows with a hole in each": (
        (PAGED, SINKS),
        lambda group, block: group is PAGED or block % 7 != 0,
    ),
    "states without windows": ((PAGED, WINDOW, STATE), lambda group, block: group is not WINDOW),
    "windows alone, a hole in each": ((WINDOW,), lambda group, block: block % 7 != 0),
}  # type: ignore[dict-item]


class CountingView:
    """The pages of a chain that were not evicted; counts what it is asked."""

    def __init__(
        self, chain: KeyChain, blocks: int, groups: Any, keeps: Keeps, tier: str = "hot"
    ) -> None:
        self.asked = 0
        self._pages = {
            PageId(chain.key(n * SIZE), group.name): PageInfo(
                n * SIZE, 0 if group is STATE else SIZE, 100, tier
            )
            for group in groups
            for n in range(1, blocks + 1)
            if keeps(group, n)
        }

    def find_all(self, pages: Sequence[PageId]) -> list[PageInfo | None]:
        self.asked += len(pages)
        return [self._pages.get(page) for page in pages]

    def tails_of(self, parents: Sequence[BlockKey]) -> set[Tail]:
        self.asked += len(parents)
        return set()


def effort(
    blocks: int, left: str, tier: str = "hot", gate: RestoreGate | None = None
) -> tuple[RestorePoint, int, int]:
    """Return the restore point, what the view was asked, and the instructions of the look-up."""
    groups, keeps = LEFT[left]
    chain = KeyChain(namespace_digest({"a": 1}), as_tokens(range(blocks * SIZE)), SIZE)
    chain.key(len(chain))
    view = CountingView(chain, blocks, groups, keeps, tier)
    steps = 0

    def count(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal steps
        if frame.f_code.co_filename != lookup.__file__:
            return None
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        point = find_restore_point(chain, groups, view, limit=len(chain), gate=gate)
    finally:
        sys.settrace(before)
    return point, view.asked, steps


@pytest.mark.parametrize("left", LEFT)
def test_twice_the_chain_is_twice_the_work(left: str) -> None:
    # From Python 3.12 on the first trace of a process counts no instructions.
    effort(1, left)
    short, asked, steps = effort(256, left)
    long, asked_twice, steps_twice = effort(512, left)
    assert (short.matched > 0, long.matched > 0) == (True, True)
    assert asked_twice <= 2 * asked
    assert asked <= 256 * 5
    assert steps_twice <= 2.3 * steps
    assert steps <= 256 * 1500
