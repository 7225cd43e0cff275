"""The index of page files, against a dictionary that is sorted for each eviction."""

import sys
from collections.abc import Collection
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kit.examples import examples
from omlx_cache_storage.cold.index import Candidate, Contents, PageFile, Victims
from omlx_cache_storage.format.names import ENTRY_BYTES, PageName, StoredPage
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId

SPACES = [BlockKey(bytes([number]) * 32) for number in range(5)]
PAGES = range(10)
NUMBERS = st.integers(0, len(PAGES) - 1)
STAMPS = st.integers(1, 4)
WRITES = st.tuples(NUMBERS, st.integers(0, 3), st.integers(0, 3), STAMPS)


def _page(number: int) -> PageId:
    return PageId(BlockKey(number.to_bytes(32, "little")), "paged")


def _stored(number: int, space: int, nbytes: int) -> StoredPage:
    """A page whose position no other one has, so that the order has no ties."""
    return StoredPage(SPACES[space], PageName(_page(number), b"\0" * 8, number, 1, False), nbytes)


class KnownPage(NamedTuple):
    """What the model knows of a page."""

    space: int
    nbytes: int
    stamp: int


class ContentsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.contents = Contents()
        self.model: dict[int, KnownPage] = {}

    @initialize(pages=st.lists(WRITES, min_size=8, max_size=20))
    def begin(self, pages: list[tuple[int, int, int, int]]) -> None:
        self.write(pages)

    @rule(pages=st.lists(WRITES, min_size=1, max_size=3))
    def write(self, pages: list[tuple[int, int, int, int]]) -> None:
        for number, *known in pages:
            self.pop(number)
            self.model[number] = KnownPage(*known)
            self.contents.add(PageFile(_stored(number, *known[:2])), known[2])

    @rule(number=NUMBERS)
    def pop(self, number: int) -> None:
        known = self.model.pop(number, None)
        file = self.contents.pop(_page(number))
        stored = file and file.stored
        assert stored == (None if known is None else _stored(number, *known[:2]))

    @rule(numbers=st.lists(NUMBERS, max_size=8), stamp=STAMPS)
    def touch(self, numbers: list[int], stamp: int) -> None:
        moved = self.contents.touch(map(_page, numbers), stamp, stamp)
        for number in numbers:
            if _page(number) in moved:
                self.model[number] = self.model[number]._replace(stamp=stamp)

    @rule(numbers=st.lists(NUMBERS, max_size=8), stamp=st.integers(0, 6))
    def place(self, numbers: list[int], stamp: int) -> None:
        self.contents.touch(map(_page, numbers), stamp)
        for number in set(numbers) & set(self.model):
            self.model[number] = self.model[number]._replace(stamp=stamp)

    @rule()
    def restart(self) -> None:
        files = ((_stored(number, *known[:2]), known.stamp) for number, known in self.model.items())
        self.contents = Contents()
        assert self.contents.fill(files) == []

    @rule(
        excess=st.sampled_from([0, 1, 1, ENTRY_BYTES + 2, 3 * ENTRY_BYTES, 6 * ENTRY_BYTES]),
        candidate=st.none() | st.tuples(NUMBERS, STAMPS),
        pinned=st.sets(NUMBERS, max_size=3),
        until=st.just(sys.maxsize) | STAMPS,
        most=st.sampled_from([1, 3, sys.maxsize]),
        evict=st.booleans(),
    )
    def make_room(
        self,
        excess: int,
        candidate: tuple[int, int] | None,
        pinned: set[int],
        until: int,
        most: int,
        evict: bool,
    ) -> None:
        wants = None if candidate is None else Candidate(_page(candidate[0]), *candidate)
        for number in self.model:
            file = self.contents.get(_page(number))
            self.contents.pin(file, 1 if number in pinned else 0, 0, sys.maxsize)
        found = self.contents.victims(excess, wants, 0, until, most)
        assert found == self.naive(excess, wants, pinned, until, most)
        if evict and found.enough:
            for page in found.pages:
                self.pop(page.key[0])

    def naive(
        self,
        excess: int,
        candidate: Candidate | None,
        pinned: Collection[int],
        until: int,
        most: int,
    ) -> Victims:
        pages: list[PageId] = []
        if excess <= 0 or excess > sum(k.nbytes + ENTRY_BYTES for k in self.model.values()):
            return Victims(pages, excess <= 0)
        for number, known in sorted(self.model.items(), key=lambda item: (item[1].stamp, -item[0])):
            if candidate is not None and _page(number) != candidate.page:
                if (known.stamp, -number) >= candidate.rank:
                    return Victims(pages, False, True)
                if until < known.stamp != candidate.stamp_ns:
                    return Victims(pages, False, True, known.stamp)
                if number in pinned:
                    continue
            pages.append(_page(number))
            excess -= known.nbytes + ENTRY_BYTES
            if excess <= 0 or len(pages) == most:
                return Victims(pages, True)
        return Victims(pages, False)

    @invariant()
    def counts_what_the_pages_take(self) -> None:
        taken = [known.nbytes + ENTRY_BYTES for known in self.model.values()]
        assert self.contents.nbytes == sum(taken)
        self.contents.check_integrity()


TestContents = ContentsMachine.TestCase
TestContents.settings = settings(max_examples=examples(40), stateful_step_count=40)
