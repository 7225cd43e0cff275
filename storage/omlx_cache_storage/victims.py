"""Which pages leave memory to make room for another. Pure: it moves none of them."""

import sys
from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol, TypeVar

from omlx_cache_storage.page import PageId


class Evictable(Protocol):
    """A page in memory: see `Held`."""

    id: PageId
    position: int
    pins: int

    @property
    def dirty(self) -> bool: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def unwritten(self) -> bool: ...


AnyEvictable = TypeVar("AnyEvictable", bound=Evictable)


class Demand(NamedTuple):
    """What is asked for: `excess` bytes more than there are, for a page that ends at `position` of
    a sequence whose pages are `own`. Own ones leave a `spare` amount at a time, those of others if
    they were used at `until_ns` at the latest."""

    excess: int
    own: Collection[PageId]
    position: int | None
    spare: int
    until_ns: int = sys.maxsize


class MemoryVictims(NamedTuple):
    """What must leave, None when no room can be made; which pages stand in the way until they are
    written; and whether one stood there that was used too short a while ago."""

    victims: list[PageId] | None
    dirty: list[PageId]
    young: bool = False


def choose_victims(
    visit: Callable[[Callable[[AnyEvictable], bool]], None],
    is_evictable: Callable[[AnyEvictable], bool],
    room: Demand,
    *,
    backed: bool,
    must_write: Callable[[AnyEvictable], bool],
    give_up_dirty: bool,
    stamp_of: Callable[[AnyEvictable], int] = lambda page: 0,
) -> MemoryVictims:
    """Choose what must leave to make room. `visit` shows pages, the first to be evicted first."""
    excess = room.excess
    behind = sys.maxsize if room.position is None else room.position
    victims: list[PageId] = []
    dirty: list[PageId] = []
    spared: list[tuple[PageId, int]] = []
    waiting: list[PageId] = []
    young = False

    def consider(held: AnyEvictable) -> bool:
        nonlocal excess, young
        if held.pins or not is_evictable(held):
            return True
        page = held.id
        ours = page in room.own
        if not ours and stamp_of(held) > room.until_ns:
            # What comes later in the order is younger still.
            young = True
            return False
        if must_write(held) and (ours or not give_up_dirty):
            dirty.append(page)
        elif not ours:
            victims.append(page)
            excess -= held.nbytes
        elif (backed and not held.dirty) or held.position > behind:
            spared.append((page, held.nbytes))
        elif backed and held.unwritten:
            waiting.append(page)
        return excess > 0

    visit(consider)
    spare = room.spare if excess > 0 else 0
    for page, size in spared:
        if excess <= 0 and size - excess > spare:
            break
        victims.append(page)
        excess -= size
    # Of a sequence's own the root first: what follows it is nothing without it.
    return MemoryVictims(
        None if excess > 0 else victims, dirty + waiting[::-1], young and excess > 0
    )


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
