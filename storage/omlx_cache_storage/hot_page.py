"""What the hot tier knows of a page, what a listing shows of it, and which pages leave memory to
make room for another."""

import sys
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, NamedTuple, Self

from omlx_cache_storage.format.names import StoredPage, name_of
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Page, PageId, PageInfo, PageMeta
from omlx_cache_storage.table import Record


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
        super().__init__(StoredPage(meta.namespace, name_of(meta), meta.nbytes))
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
    def tier(self) -> str:
        return "pending" if self.pins else "hot"

    @property
    def info(self) -> PageInfo:
        return PageInfo(self.position, self.held, self.nbytes, self.tier)

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


class Reservation:
    """Memory set aside for a page, or for some of one sequence; false when there was none.

    Bytes of it are used once: `HotTier.put` takes a page into them, and the end of a `with` block,
    or `release`, gives back what is left. `refused`: what is there was used too short a while ago.
    `passes`: for a page that was refused, until the disk has it. `dirty`: the pages that stood in
    the way until they are written. `nbytes` is what is left; the tier's lock guards it.
    """

    __slots__ = ("_give_back", "dirty", "granted", "nbytes", "passes", "refused")

    def __init__(
        self,
        give_back: Callable[["Reservation", int], None] | None = None,
        nbytes: int = 0,
        *,
        passes: bool = False,
        refused: bool = False,
        dirty: Sequence[PageId] = (),
    ) -> None:
        self._give_back = give_back
        self.granted = give_back is not None
        self.nbytes = nbytes
        self.passes = passes
        self.refused = refused
        self.dirty = dirty

    def __bool__(self) -> bool:
        return self.granted

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def take(self, nbytes: int) -> None:
        """Use bytes, which nobody may use again."""
        assert self.granted, "nothing was reserved"
        assert nbytes <= self.nbytes, (nbytes, self.nbytes)
        self.nbytes -= nbytes

    def release(self, nbytes: int = sys.maxsize) -> None:
        """Give back what nobody has used, so many bytes of it at most; any number of times."""
        if self._give_back is not None:
            self._give_back(self, nbytes)


class MemoryVictims(NamedTuple):
    """What must leave, None when no room can be made; which pages stand in the way until they are
    written; and whether one stood there that was used too short a while ago."""

    victims: list[PageId] | None
    dirty: list[PageId]
    young: bool = False


SHARE = 8
"""At most this part of memory: it is set aside when a page is refused a place of its own, and given
back when none has passed for a while."""
LINGER_NS = 60 * 1_000_000_000


class Transit:
    """Counts bytes: `used` by pages that pass, `aside` kept for them, no less. Not thread-safe: its
    owner's lock guards it."""

    def __init__(self, limit_bytes: int) -> None:
        self._most = limit_bytes // SHARE
        self._last_ns = 0
        self.used = 0
        self.aside = 0

    @property
    def idle(self) -> int:
        """The bytes that are set aside and not used."""
        return self.aside - self.used

    def has_room(self, nbytes: int) -> bool:
        """True when a page may pass now: one larger than the share, by itself."""
        return not self.used or self.used + nbytes <= self._most

    def enter(self, nbytes: int, now_ns: int) -> None:
        """Note that a page is about to pass."""
        self.used += nbytes
        self.aside = max(self.aside, self.used)
        self._last_ns = now_ns

    def leave(self, nbytes: int) -> None:
        """Note that a page has gone, or will not come."""
        self.used -= nbytes

    def settle(self, now_ns: int) -> None:
        """Give back what nobody has used for a while."""
        if self.aside > self.used and now_ns - self._last_ns > LINGER_NS:
            self.aside = self.used
