"""What the hot tier knows of a page, and what a listing shows of it."""

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

import numpy as np

from omlx_cache_storage.format.names import parent_hint
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Page, PageId, PageInfo, PageMeta
from omlx_cache_storage.table import PageColumns, Record, hint_numbers


class PageState(Enum):
    """What the disk has of a page that is in memory.

    `ONLY`: there is no disk. `DIRTY`: the disk lacks it and should have it. `CLEAN`: the disk has
    it. `REJECTED`: the disk's budget, or a day's, has no room for it until it is used again.
    `EVICTED`: it left the disk for others, and is written again when it is used.
    """

    ONLY = "only"
    DIRTY = "dirty"
    CLEAN = "clean"
    REJECTED = "rejected"
    EVICTED = "evicted"


TRANSITIONS: Final = frozenset(
    {
        (PageState.DIRTY, PageState.CLEAN),
        (PageState.DIRTY, PageState.REJECTED),
        (PageState.CLEAN, PageState.DIRTY),
        (PageState.CLEAN, PageState.EVICTED),
        (PageState.REJECTED, PageState.DIRTY),
        (PageState.EVICTED, PageState.DIRTY),
    }
)
"""How a page's state may change while it is in memory; `docs/design.md` says by which event."""


class Held(Record):
    """A page in memory, mutable by its tier. `pins`: queued writes. `owed`: it was accepted, and
    the disk has neither had it since nor rejected it for its budget. `passes`: it leaves as soon as
    the disk has it. `kept_ns`: until when a pin keeps it, 0 without one."""

    __slots__ = ("kept_ns", "owed", "page", "passes", "pins", "state")

    def __init__(
        self,
        page: Page,
        state: PageState,
        pins: int = 0,
        *,
        owed: bool = False,
        passes: bool = False,
    ) -> None:
        meta = page.meta
        super().__init__(meta.id, meta.position, parent_hint(meta.parent), meta.tail)
        self.page = page
        self.state = state
        self.pins = pins
        self.owed = owed
        self.passes = passes
        self.kept_ns = 0

    def become(self, state: PageState) -> None:
        """Change the state; a change that no event makes is a bug."""
        if state is not self.state:
            assert (self.state, state) in TRANSITIONS, (self.state, state)
            self.state = state

    @property
    def held(self) -> int:
        return self.page.meta.held

    @property
    def nbytes(self) -> int:
        return self.page.meta.nbytes

    @property
    def tier(self) -> str:
        return "pending" if self.pins else "hot"

    @property
    def info(self) -> PageInfo:
        return PageInfo(self.position, self.held, self.page.meta.nbytes, self.tier)

    @property
    def dirty(self) -> bool:
        """True when the disk lacks it."""
        return self.state not in (PageState.CLEAN, PageState.ONLY)

    @property
    def refused(self) -> bool:
        """True when the disk lacks it and is not asked to take it before its next use."""
        return self.state in (PageState.REJECTED, PageState.EVICTED)

    @property
    def unwritten(self) -> bool:
        """True when the disk lacks it and would take it."""
        return self.state is PageState.DIRTY


class HotEntry(NamedTuple):
    """A page in a listing: `tier` is `hot` or `pending`, `used_ns` its recency stamp."""

    meta: PageMeta
    tier: str
    used_ns: int

    @property
    def page(self) -> PageId:
        return self.meta.id

    @property
    def namespace(self) -> BlockKey:
        return self.meta.namespace

    @property
    def info(self) -> PageInfo:
        return PageInfo(self.meta.position, self.meta.held, self.meta.nbytes, self.tier)

    @property
    def path(self) -> None:
        """None: what is in memory is no file."""
        return None


class Granted(Enum):
    """What became of a request for memory; true when there is some.

    `REFUSED`: what is there was used too short a while ago. `PASSES`: for a page that was refused,
    until the disk has it.
    """

    NO = "no"
    REFUSED = "refused"
    STAYS = "stays"
    PASSES = "passes"

    def __bool__(self) -> bool:
        return self in (Granted.STAYS, Granted.PASSES)


class Grant(NamedTuple):
    """Whether bytes were reserved, and the dirty pages that stood in the way."""

    outcome: Granted
    dirty: list[PageId]

    @property
    def granted(self) -> bool:
        return bool(self.outcome)


def columns_of(entries: Sequence[HotEntry]) -> PageColumns:
    """Return pages of memory as columns."""
    metas = [entry.meta for entry in entries]
    numbers: dict[BlockKey, int] = {}
    namespace = [numbers.setdefault(meta.namespace, len(numbers)) for meta in metas]
    keys = np.empty(len(metas), np.object_)
    keys[:] = [meta.key for meta in metas]
    return PageColumns(
        keys,
        hint_numbers(meta.parent for meta in metas),
        np.array([meta.position for meta in metas], np.int64),
        np.array([meta.held for meta in metas], np.int64),
        np.array([meta.nbytes for meta in metas], np.int64),
        np.array([entry.used_ns for entry in entries], np.int64),
        list(numbers),
        np.array(namespace, np.uint32),
    )
