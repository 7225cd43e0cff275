"""The hot tier's record of a page, its state, and reserved memory; and when a page of memory goes
to the disk: the write policies, and a write that is queued."""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from math import inf
from types import MappingProxyType
from typing import Final, NamedTuple

from omlx_cache_storage.eviction.order import Record
from omlx_cache_storage.format.names import StoredPage, name_of
from omlx_cache_storage.page import Page, PageId, PageInfo


class PageState(Enum):
    """The state of a page in memory: what the disk has of it.

    `ONLY`: there is no disk. `DIRTY`: the disk lacks it and should have it. `QUEUED`: its write is
    queued, or in flight. `CLEAN`: the disk has it. `REJECTED`: the disk's budget, or a day's, has
    no room for it until it is used again. `EVICTED`: the disk evicted it, and it is written again
    when it is used. `PREPARED`: no request has used it yet, and it is written when one does.
    """

    ONLY = "only"
    DIRTY = "dirty"
    QUEUED = "queued"
    CLEAN = "clean"
    REJECTED = "rejected"
    EVICTED = "evicted"
    PREPARED = "prepared"


TRANSITIONS: Final = frozenset(
    {
        (PageState.DIRTY, PageState.QUEUED),
        (PageState.QUEUED, PageState.CLEAN),
        (PageState.QUEUED, PageState.DIRTY),
        (PageState.QUEUED, PageState.REJECTED),
        (PageState.CLEAN, PageState.DIRTY),
        (PageState.CLEAN, PageState.EVICTED),
        (PageState.REJECTED, PageState.DIRTY),
        (PageState.EVICTED, PageState.DIRTY),
        (PageState.PREPARED, PageState.DIRTY),
    }
)
"""How a page's state may change in memory; `docs/design.md` says by which event."""
UNWRITTEN: Final = (PageState.DIRTY, PageState.QUEUED)
"""States in which the disk lacks a page, and would take it or has it in its queue."""
REFUSED: Final = (PageState.REJECTED, PageState.EVICTED)
"""States in which the disk lacks a page and is not asked to take it before its next use."""


class Held(Record):
    """A page in memory, mutable by its tier. `came_ns`: when its stay began; a fuller page that
    takes its place in the queue goes on with that. `owed`: it was accepted, and the disk has
    neither had it since nor rejected it for its budget. `passes`: it leaves as soon as the disk has
    it. `page` is None when the stay has ended: who keeps a record keeps no memory."""

    __slots__ = ("came_ns", "meta", "owed", "page", "passes", "state")

    def __init__(self, page: Page, state: PageState, came_ns: int, passes: bool) -> None:
        meta = page.meta
        super().__init__(StoredPage(meta.namespace, name_of(meta), meta.nbytes))
        self.meta = meta
        self.page: Page | None = page
        self.state = state
        self.came_ns = came_ns
        self.passes = passes
        self.owed = False

    @property
    def info(self) -> PageInfo:
        tier = "pending" if self.state is PageState.QUEUED else "hot"
        return PageInfo(self.position, self.held, self.nbytes, tier)


@dataclass(eq=False, slots=True)
class Reservation(AbstractContextManager["Reservation"]):
    """Memory reserved for a page, or for some of one sequence; false when there was none.

    Its bytes are used once: `HotTier.put` takes a page into them, and `release`, or the end of a
    `with` block, releases the unused ones. `refused`: the pages there were used too recently.
    `passes`: for a rejected page, until the disk has it. `dirty`: the pages that stood in the way
    until they are written. `nbytes` are the unused bytes; the tier's lock guards them.
    """

    _give_back: Callable[["Reservation", int], None] | None = None
    nbytes: int = 0
    passes: bool = False
    refused: bool = False
    dirty: Sequence[PageId] = ()

    def __bool__(self) -> bool:
        return self._give_back is not None

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self, nbytes: int = sys.maxsize) -> None:
        if self._give_back is not None and self.nbytes:
            self._give_back(self, nbytes)


class MemoryVictims(NamedTuple):
    """The pages to evict, and the dirty pages that stand in the way until they are written.
    `young`: one in the way was used too recently. `lacking`: the bytes that are still missing."""

    victims: list[Held]
    dirty: list[PageId]
    young: bool = False
    lacking: int = 0


@dataclass(frozen=True, slots=True)
class WritePolicy:
    """When a page that memory has goes to the disk.

    `at_once`: when it is stored, and when it is used again. Else when memory is to evict it, and
    not at all once a longer page has replaced it. `idle_seconds`: when nothing was stored or used
    for so long and the writer is idle, the remaining pages are queued. `delay_seconds`: so long
    after it was stored a page is queued at the latest.
    """

    at_once: bool
    idle_seconds: float
    delay_seconds: float = inf


WRITE_POLICIES: Final = MappingProxyType(
    {
        "through": WritePolicy(at_once=True, idle_seconds=0.0),
        # After a minute without requests writing disturbs no request; a kill costs five minutes.
        "lazy": WritePolicy(at_once=False, idle_seconds=60.0, delay_seconds=300.0),
    }
)


class Write(NamedTuple):
    """A queued write: of which page, how large that was, and when its stay had begun."""

    page: PageId
    nbytes: int
    came_ns: int


def fits(nbytes: int, queued_bytes: int, limit_bytes: int) -> bool:
    """Return whether a page has room in the queue. One larger than that has it for itself."""
    return not queued_bytes or queued_bytes + nbytes <= limit_bytes
