"""The hot tier: pages in memory, under a byte budget."""

import sys
import threading
from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter

from omlx_cache_storage.events import SILENT, Departures, EventLog, How
from omlx_cache_storage.eviction.keep import SUPERSEDED_NS, Clock, Keep
from omlx_cache_storage.eviction.order import LocalTier, OrderedPages
from omlx_cache_storage.hot_page import (
    REFUSED,
    TRANSITIONS,
    UNWRITTEN,
    WRITE_POLICIES,
    Held,
    MemoryVictims,
    PageState,
    Reservation,
    Write,
    WritePolicy,
    fits,
)
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Page, PageId, PageInfo
from omlx_cache_storage.pins import SHARE, Pinned, Pins
from omlx_cache_storage.stats import HotUsage, Kind

SPARE_SHARE = 32
"""The share of the tier that a sequence larger than it evicts of its own pages at a time, and that
is queued at a time for want of memory: the order is not gone through for each page."""
PASSING_SHARE = 8
"""At most this part of memory is set aside for pages that pass, until none has passed for a
while."""
LINGER_NS = 60 * 1_000_000_000
LOST = 16_384
"""Lost pages that are known by name, 4 MB; `lost_unnamed` says that there were more."""
ON_DISK = "the disk has it"


class HotTier(LocalTier[Held]):
    """Holds live pages; `bytes held + bytes reserved <= limit_bytes` at every moment. Any thread
    may call; no I/O here.

    `_lock` guards all that changes: `_repinned` is the version of `pins` that pages follow,
    `_unused` are pages read ahead and not used yet, `_passing_bytes` is what pages take that pass,
    or are about to, `_aside` the least that is reserved for those, `_passed_ns` when one was
    admitted last, `_active_ns` when something was stored or used last, `_allowed` what may be held
    for now, `_lost` are pages that left while they were owed to the disk, `dropped` is how many
    ever did, `deletions` how many calls deleted pages on request, and `_came` when those had come
    that were unwritten at the end.

    A queued page is never evicted. `backed`: there is a disk, so that a dirty page is not evicted
    either, but named for writing first, and is owed to the disk from `put` until it is there; a
    superseded one is evicted all the same, unless `writes` has it written at once. Without `retain`
    a page leaves as soon as the disk has it. `policy` says how young a page must not be to make
    room for one of another sequence.
    """

    def __init__(
        self,
        limit_bytes: int,
        *,
        writes: WritePolicy = WRITE_POLICIES["through"],
        retain: bool = True,
        backed: bool = False,
        clock: Clock | None = None,
        departures: Departures | None = None,
        policy: Keep | None = None,
        events: EventLog = SILENT,
        pins: Pins | None = None,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.pins = Pins() if pins is None else pins
        self._events = events
        self._departures = departures or Departures()
        self._writes = writes
        self.retain = retain
        self._backed = backed
        self._clock = clock or Clock()
        self._lock = threading.Lock()
        self._pages = OrderedPages[Held](policy)
        self._repinned = 0
        self._unused: set[PageId] = set()
        self._reserved = self._dirty_bytes = self._peak = 0
        self._passing_bytes = self._aside = self._passed_ns = 0
        self._active_ns = self._clock.now()
        self._allowed = limit_bytes
        self._evicted = self._passed = self._refused = 0
        self._lost: dict[PageId, tuple[BlockKey, int]] = {}
        self.dropped = 0
        self.lost_unnamed = False
        self.deletions = 0
        self._closed = False
        self._came: dict[PageId, int] = {}

    def reserve(
        self,
        nbytes: int,
        own: Collection[PageId] = (),
        *,
        evict: bool = True,
        give_up_dirty: bool = False,
        position: int = sys.maxsize,
        shift_ns: int = 0,
        may_pass: bool = False,
        prepared: bool = False,
    ) -> Reservation:
        """Set bytes aside for a page about to be made, evicting others as needed.

        Pages of the same sequence (`own`) leave last, and only those that the disk has, or that end
        behind `position`, where the new page does. Without `evict` only free room is granted.
        `give_up_dirty` evicts dirty pages of others as well. The page counts as used `shift_ns`
        later than now, and pages of others stay that were used after that, less the policy's
        patience. What they hinder may pass, with `may_pass`. One that is `prepared` evicts
        superseded and prepared pages, whose ever they are, and then those of others that the disk
        has too, up to the first that it lacks.
        """
        with self._lock:
            now = self._clock.now()
            if now - self._passed_ns > LINGER_NS:
                self._aside = self._passing_bytes
            excess = self._pages.nbytes + self._reserved + nbytes - self._allowed
            idle = self._aside - self._passing_bytes
            found = MemoryVictims([], [], lacking=excess + idle)
            if evict and nbytes <= self._allowed:
                found = self._victims(
                    excess + idle,
                    self._allowed,
                    own,
                    position,
                    now + shift_ns - self._pages.policy.patience_ns,
                    give_up_dirty,
                    prepared=prepared,
                )
            share = self.limit_bytes // PASSING_SHARE
            # One larger than the share passes by itself.
            passes = may_pass and found.young and self._passing_bytes <= max(0, share - nbytes)
            if passes:
                # What is set aside is there for it.
                found = self._victims(excess, self._allowed, own)
            if found.lacking > 0 or self._closed:
                return Reservation(
                    refused=found.young and not (may_pass or prepared), dirty=found.dirty
                )
            if found.victims:
                self._evict(found.victims)
            self._reserved += nbytes
            if passes:
                self._passing_bytes += nbytes
                self._aside = max(self._aside, self._passing_bytes)
                self._passed_ns = now
            self._peak = max(self._peak, self._pages.nbytes + self._reserved)
            return Reservation(self._release, nbytes, passes=passes, dirty=found.dirty)

    def allow(self, nbytes: int) -> None:
        with self._lock:
            self._allowed = min(nbytes, self.limit_bytes)

    def shrink(self, nbytes: int, *, give_up_dirty: bool = False) -> bool:
        with self._lock:
            found = self._victims(
                self._pages.nbytes + self._reserved - nbytes, nbytes, give_up_dirty=give_up_dirty
            )
            self._evict(found.victims)
            return found.lacking <= 0

    def put(
        self,
        page: Page,
        room: Reservation,
        *,
        dirty: bool,
        stamp_ns: int | None = None,
        began_ns: int = 0,
        prepared: int | None = None,
    ) -> bool:
        """Take a page into its reservation.

        Its stamp of the clock is now by default; the request that wants it began at `began_ns`. One
        that was `prepared` is owed to the disk from its first use on, which a page behind it is
        too; at once if it is pinned, or fuller than one that was asked for. It is not taken unless
        `deletions` are as many as when it was begun. False, and the bytes given back, when one that
        holds as many of its tokens is here. A fuller one takes the place of one whose write is
        queued, in the queue too.
        """
        meta = page.meta
        with self._lock:
            now, old = self._clock.now(), self._pages.get(meta.id)
            is_wanted = stamp_ns is not None
            self._give_back(room, meta.nbytes)
            is_late = prepared not in (None, self.deletions)
            if self._closed or is_late or (old is not None and old.held >= meta.held):
                return False
            if old is not None:
                self._take_out(meta.id)
            self._lost.pop(meta.id, None)
            state = PageState.CLEAN if self._backed else PageState.ONLY
            held = Held(page, PageState.DIRTY if dirty else state, now, room.passes)
            if old is not None and old.state is PageState.QUEUED:
                held.state, held.came_ns = old.state, old.came_ns
            stamp_ns = now if stamp_ns is None else stamp_ns
            is_unasked = prepared is not None
            if is_unasked and old is not None and old.state is not PageState.PREPARED:
                is_unasked, stamp_ns = False, max(stamp_ns, old.stamp_ns)
            if self.pins.version:
                self._pages.pin(held, self._wanted_until(held), now, self.limit_bytes // SHARE)
            if dirty and is_unasked and not held.pinned_ns:
                held.state = PageState.PREPARED
            elif dirty:
                held.owed, self._active_ns = True, now
                self._ask_for_chain(self._pages.get(meta.before))
            if is_wanted and not is_unasked:
                self._pages.policy.wanted([meta.id], began_ns)
            elif not held.pinned_ns:
                self._unused.add(meta.id)
            self._pages.add(held, stamp_ns)
            self._passed += held.passes
            self._dirty_bytes += held.nbytes * (held.state is PageState.DIRTY)
            self._passing_bytes += held.nbytes * held.passes
            self._events.note_page("stored", "hot", meta)
            return True

    def record(self, page: PageId, came_ns: int | None = None) -> Held | None:
        """Return the record of a page, or of the fuller one in its place; it changes, and has no
        payload once the page is evicted. None for one whose stay did not begin at `came_ns`, where
        that is given: it was removed since, and stored anew."""
        with self._lock:
            held = self._pages.get(page)
            return held if held is None or came_ns in (None, held.came_ns) else None

    def get(self, page: PageId) -> Page | None:
        """Return a page, which stays valid for as long as the caller holds it."""
        held = self.record(page)
        return None if held is None else held.page

    def find_all(self, pages: Iterable[PageId]) -> list[PageInfo | None]:
        found: list[PageInfo | None] = []
        with self._lock:
            for held in map(self._pages.get, pages):
                found.append(None if held is None else held.info)
        return found

    def entries(self) -> list[Held]:
        return sorted(self.records(), key=attrgetter("rank"))

    def unwritten(self, known: Iterable[PageId]) -> list[PageId]:
        """Return those of `known` pages that the disk lacks and is to have."""
        unwritten: list[PageId] = []
        with self._lock:
            for held in map(self._pages.get, known):
                if held is not None and held.state in UNWRITTEN:
                    unwritten.append(held.id)
        return unwritten

    def queue(
        self, pages: Iterable[PageId], queued_bytes: int = 0, limit_bytes: int = sys.maxsize
    ) -> tuple[list[Write], bool]:
        """Queue the dirty ones of the pages, and before each the dirty pages that lead to it: of a
        disk without room for both the root has it. False when one had no room in the queue; it
        and those behind it stay dirty then.

        What leads to a page that the disk has, or that is queued, is looked at no further.
        """
        writes: list[Write] = []
        with self._lock:
            for page in pages:
                line: list[Held] = []
                held = self._pages.get(page)
                while held is not None and held.state is PageState.DIRTY:
                    line.append(held)
                    held = self._pages.get(held.meta.before)
                for held in reversed(line):
                    if not fits(held.nbytes, queued_bytes, limit_bytes):
                        return writes, False
                    self._change(held, PageState.QUEUED)
                    writes.append(Write(held.id, held.nbytes, held.came_ns))
                    queued_bytes += held.nbytes
        return writes, True

    def end_write(
        self,
        write: Write,
        written: Page | None = None,
        refused_ns: int | None = None,
        *,
        rationed: bool = False,
    ) -> bool:
        """Note how a queued write ended; False when the page was removed since.

        `written` is the version of the page that the disk has now, `refused_ns` the stamp at which
        its budget, or a day's (`rationed`), had no room for the page: one used since is worth more.
        """
        with self._lock:
            held = self._pages.get(write.page)
            if held is None or held.came_ns != write.came_ns:
                return self._came.get(write.page) == write.came_ns
            state = PageState.DIRTY
            if written is not None and written.meta.held >= held.held:
                state = PageState.CLEAN
                held.owed = False
            elif refused_ns is not None:
                state = PageState.REJECTED if held.stamp_ns <= refused_ns else state
                held.owed = held.owed and rationed
            self._change(held, state)
            if (not self.retain or held.passes) and state is not PageState.DIRTY:
                self._evict(
                    [held], "disk", ON_DISK if state is PageState.CLEAN else "refused by the disk"
                )
            return True

    def mark_lost(self, pages: Iterable[tuple[PageId, int]]) -> None:
        """Note that the disk has pages no longer, each with its stamp there: what is here of them
        is to be written again if it was used since, and else once it is used."""
        with self._lock:
            for page, stamp_ns in pages:
                held = self._pages.get(page)
                if held is not None and held.state is PageState.CLEAN:
                    self._change(
                        held, PageState.DIRTY if held.stamp_ns > stamp_ns else PageState.EVICTED
                    )

    def ask_again(self) -> None:
        with self._lock:
            for held in self._pages.records():
                if held.state in REFUSED:
                    self._change(held, PageState.DIRTY)

    def owed(self, known: Collection[PageId]) -> dict[PageId, int]:
        """Return the accepted pages, `known` or lost, that the disk had neither had nor rejected
        for its budget; with the tokens of those that have left memory, 0 for one that is here and
        may be a later version."""
        with self._lock:
            owed = {page: held for page, (_, held) in self._lost.items()}
            for here in map(self._pages.get, known):
                if here is not None and here.owed:
                    owed[here.id] = 0
            return owed

    def dirty(self, beyond_bytes: int = 0) -> list[PageId]:
        """Return dirty pages, next to be evicted first, until no more than `beyond_bytes` of them
        are left unnamed; when they are more, a few further ones too. Not superseded ones that need
        not be kept."""
        named: list[PageId] = []
        goal = beyond_bytes - beyond_bytes // SPARE_SHARE
        with self._lock:
            left = self._dirty_bytes
            for held in self._pages.in_order() if left > beyond_bytes else ():
                if held.state is PageState.DIRTY:
                    if left <= beyond_bytes and left - held.nbytes < goal:
                        break
                    left -= held.nbytes
                    if self._is_wanted(held):
                        named.append(held.id)
        return named

    def due(self, ahead_seconds: float = 0.0) -> list[PageId]:
        """Return what the write policy wants on the disk within so many seconds, by the clock; and
        pages that pass and that the disk has failed to take, or nothing would pass any more. What
        stays unwritten is named again."""
        now = self._clock.now()
        idle = now - self._active_ns >= self._writes.idle_seconds * 1e9
        late_ns = now + (ahead_seconds - self._writes.delay_seconds) * 1e9
        due: list[PageId] = []
        for held in reversed(self.entries()) if self._dirty_bytes else ():
            is_late = idle or (held.owed and held.came_ns <= late_ns)
            wanted = held.passes or (is_late and self._is_wanted(held))
            if wanted and held.state is PageState.DIRTY:
                due.append(held.id)
        return due

    def touch(
        self,
        chain: Iterable[PageId],
        stamp_ns: int | None = None,
        since_ns: int = 0,
        *,
        used: bool = True,
    ) -> None:
        """Mark pages as used at a stamp of the clock, now by default, as `Tiers.touch` says: they
        are worth a place on the disk again, where that had refused them."""
        with self._lock:
            self._active_ns = self._clock.now()
            stamp_ns = self._active_ns if stamp_ns is None else stamp_ns
            pages = list(chain)
            unused = self._unused.intersection(pages)
            if unused:
                # The stamps that they came with are no use's.
                self._pages.policy.wanted(unused, stamp_ns)
                self._pages.touch(unused, stamp_ns)
                self._unused -= unused
            # Not those that a pin keeps: their stamp is when that ends.
            here = self._pages.touch(pages, stamp_ns, max(stamp_ns, since_ns), used=used)
            if used and len(here) < len(pages):
                absent = [page for page in pages if page not in self._pages]
                self._pages.policy.wanted(absent, stamp_ns)
                self._pages.policy.refused(absent, stamp_ns)
            # A pin's stamp is not moved, and a prepared page is asked for all the same.
            for held in map(self._pages.get, pages if used else here):
                if held is not None and held.state is PageState.PREPARED:
                    self._ask_for_chain(held)
                elif held is not None and held.state in REFUSED and held.stamp_ns == stamp_ns:
                    self._change(held, PageState.DIRTY)

    def demote(self, pages: Iterable[PageId], stamp_ns: int) -> None:
        with self._lock:
            self._pages.touch(self._pages.unpinned(pages, self._clock.now()), stamp_ns)

    def repin(self, pages: Sequence[PageId] | None = None) -> Pinned:
        """Pin those of some pages that pins want, root first, and release the others; None: of all
        pages, if pins have changed."""
        with self._lock:
            if pages is None and self._repinned == self.pins.version:
                return Pinned(0, 0, 0)
            records, now = self._pages.records(), self._clock.now()
            if pages is None:
                self._repinned = self.pins.version
                found = [held for held in records if held.pinned_ns or self._wanted_until(held)]
                found.sort(key=lambda held: (not held.pinned_ns, held.position))
            else:
                found = [held for held in map(self._pages.get, pages) if held and self.retain]
                for held in records:
                    if 0 < held.pinned_ns <= now:
                        self._pages.pin(held, 0, now, 0)
            pinned = self._pages.repin(found, self._wanted_until, now, self.limit_bytes // SHARE)
            for held in found:
                if held.pinned_ns:
                    self._ask_for_chain(held)
            return pinned

    def refuse(self, pages: Sequence[PageId], began_ns: int) -> None:
        """Note rejected pages of a request that began at a stamp: the policy learns from their
        return."""
        with self._lock:
            self._pages.policy.wanted(pages, began_ns)
            self._pages.policy.refused(pages, began_ns)
            self._refused += len(pages)

    def discard(
        self, pages: Iterable[PageId], kind: Kind | None = "removed", detail: str = ""
    ) -> int:
        """Delete pages, queued or not; return how many there were. `kind` and `detail` are for the
        log of events; None for what the caller tells of as a whole."""
        with self._lock:
            count = 0
            self.deletions += kind == "removed"
            for page in pages:
                self._lost.pop(page, None)
                count += self._take_out(page, kind, detail)
            return count

    def clear(self, namespace: BlockKey) -> set[PageId]:
        with self._lock:
            self._lost = {page: of for page, of in self._lost.items() if of[0] != namespace}
            pages = {held.id for held in self._pages.records() if held.namespace == namespace}
            for page in pages:
                self._take_out(page)
            self.deletions += 1
            return pages

    def close(self) -> None:
        """Drop every page, and take no more, not even what was admitted before."""
        with self._lock:
            self._closed = True
            here = self._pages.records()
            self._came |= {held.id: held.came_ns for held in here if held.state in UNWRITTEN}
            for held in here:
                self._take_out(held.id)
            if here:
                self._events.note_tier("cleared", "hot", detail=f"closed, with {len(here)} pages")

    def usage(self) -> HotUsage:
        with self._lock:
            return HotUsage(
                len(self._pages),
                self._pages.nbytes + self._reserved,
                self._peak,
                self.limit_bytes,
                self._allowed,
                self._evicted,
                self._passed,
                self._refused,
                self._pages.policy.patience_ns / 1e9,
            )

    def check_integrity(self, *, idle: bool = False) -> None:
        with self._lock:
            assert not (idle and self._reserved), self._reserved
            entries = self._pages.records()
            dirty = [e.nbytes for e in entries if e.state is PageState.DIRTY]
            assert self._dirty_bytes == sum(dirty), (self._dirty_bytes, dirty)
            assert self._reserved >= 0, self._reserved
            passing = sum(e.nbytes for e in entries if e.passes)
            assert passing <= self._passing_bytes <= self._aside, passing
            self._pages.check_integrity()
            assert self._pages.nbytes + self._reserved <= self.limit_bytes

    def _victims(
        self,
        excess: int,
        room: int,
        own: Collection[PageId] = (),
        position: int = sys.maxsize,
        until_ns: int = sys.maxsize,
        give_up_dirty: bool = False,
        *,
        prepared: bool = False,
    ) -> MemoryVictims:
        """Choose what must leave to make room for `excess` bytes more than there are; arguments as
        in `reserve`: of `own` pages some at a time, and those of others if they were used at
        `until_ns` at the latest. Pins keep pages as long as their share is one of `room`."""
        victims: list[Held] = []
        dirty: list[PageId] = []
        spared: list[Held] = []
        young, now, pins_hold = False, self._clock.now(), None
        for held in self._pages.in_order() if excess > 0 else ():
            pinned = held.pinned_ns > now
            if pinned and pins_hold is None:
                here = self._pages.records()
                pins_hold = sum(h.nbytes for h in here if h.pinned_ns > now) * SHARE <= room
            if held.state is PageState.QUEUED or (pinned and pins_hold):
                continue
            ours = held.id in own
            spares = prepared and held.stamp_ns > SUPERSEDED_NS
            if spares and ours:
                continue
            is_young = held.stamp_ns > until_ns and (prepared or not (ours or pinned))
            if is_young or (spares and held.state is not PageState.CLEAN):
                # What comes later in the order is younger still.
                young = True
                break
            # Else it is written before it may leave.
            free = not (self._backed and held.state is PageState.DIRTY and self._is_wanted(held))
            if not ours and (free or give_up_dirty):
                victims.append(held)
                excess -= held.nbytes
            elif ours and (held.state is PageState.CLEAN or (free and held.position > position)):
                spared.append(held)
            elif self._backed and held.state is PageState.DIRTY:
                dirty.append(held.id)
            if excess <= 0:
                break
        spare = self.limit_bytes // SPARE_SHARE if excess > 0 else 0
        for held in spared:
            if excess <= 0 and held.nbytes - excess > spare:
                break
            victims.append(held)
            excess -= held.nbytes
        return MemoryVictims(victims, dirty, young and excess > 0, excess)

    def _wanted_until(self, held: Held) -> int:
        return self.pins.chain_until(held.namespace, held.id.key) if self.retain else 0

    def _is_wanted(self, held: Held) -> bool:
        """False for a page that a longer one has replaced and that need not be kept."""
        return self._writes.at_once or held.stamp_ns > SUPERSEDED_NS

    def _ask_for_chain(self, held: Held | None) -> None:
        """Have the disk asked for a prepared page and those that lead to it: without its root it is
        of no use there."""
        while held is not None and held.state is PageState.PREPARED:
            held.owed = True
            self._change(held, PageState.DIRTY)
            held = self._pages.get(held.meta.before)

    def _change(self, held: Held, state: PageState) -> None:
        assert (held.state, state) in TRANSITIONS, (held.state, state)
        was_dirty, held.state = held.state is PageState.DIRTY, state
        self._dirty_bytes += held.nbytes * ((state is PageState.DIRTY) - was_dirty)

    def _evict(self, victims: Sequence[Held], how: How = "memory", detail: str = "") -> None:
        """Drop pages, and note those that no disk has; a superseded one is owed to nobody."""
        for held in victims:
            if held.owed and self._is_wanted(held):
                self.dropped += 1
                if len(self._lost) < LOST:
                    self._lost[held.id] = held.namespace, held.held
                else:
                    self.lost_unnamed = True
            self._take_out(held.id, "evicted", detail)
        self._evicted += len(victims) if how == "memory" else 0
        self._departures.note([h.id for h in victims if h.state is not PageState.CLEAN], how)

    def _give_back(self, room: Reservation, nbytes: int) -> None:
        assert nbytes <= room.nbytes, (nbytes, room.nbytes)
        room.nbytes -= nbytes
        self._reserved -= nbytes
        self._passing_bytes -= nbytes if room.passes else 0

    def _release(self, room: Reservation, nbytes: int) -> None:
        with self._lock:
            self._give_back(room, min(nbytes, room.nbytes))

    def _take_out(self, page: PageId, kind: Kind | None = None, detail: str = "") -> bool:
        held = self._pages.pop(page)
        if held is None:
            return False
        self._unused.discard(page)
        held.page = None
        self._dirty_bytes -= held.nbytes * (held.state is PageState.DIRTY)
        self._passing_bytes -= held.nbytes * held.passes
        if kind is not None:
            self._events.note_page(kind, "hot", held.meta, detail)
        return True
