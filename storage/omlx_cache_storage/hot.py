"""The hot tier: pages in memory, under a byte budget."""

import sys
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from omlx_cache_storage.events import SILENT, Departures, EventLog
from omlx_cache_storage.eviction.ages import Learned
from omlx_cache_storage.eviction.keep import SUPERSEDED_NS, Clock, Keep, Lru
from omlx_cache_storage.hints import FOREVER_NS, SHARE, Pinned, Pins
from omlx_cache_storage.hot_page import (
    Held,
    HotEntry,
    MemoryVictims,
    PageState,
    Reservation,
    Transit,
)
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Page, PageId, PageInfo, Tail
from omlx_cache_storage.stats import HotUsage, Kind
from omlx_cache_storage.table import PageColumns, PageTable, columns_of

SPARE_SHARE = 32
"""What a sequence larger than the tier pushes out of its own pages at a time, and what write-back
queues at a time: this share of the tier, so that the order is not gone through for each page."""
LOST = 16_384
"""Lost pages that are known by name, 4 MB; `lost_unnamed` says that there were more."""
ON_DISK = "the disk has it"
"""Why a page leaves, in the log of events."""


class HotTier:
    """Holds live pages; `bytes held + bytes reserved <= limit_bytes` at every moment.

    `_lock` guards `_index`, `_policy`, `_transit`, `_passing` (pages that pass), `_repinned` (the
    version of `pins` that was gone by), `_pinned_bytes` (of pages that pins keep), `_pins_end`
    (none of these ends before that), `_unused` (pages that were read for who comes), `_bytes`,
    `_reserved`, `_dirty_bytes` (of unwritten pages), `_queued_bytes` (pinned ones of them),
    `_allowed` (what may be held for now, `limit_bytes` at most), `_peak`, `_evicted`,
    `_passed`, `_refused`, `_removed` (pins of pages that were removed since), `_lost` (pages that
    left while they were owed to the disk), `_dropped` (how many ever did), `lost_unnamed` and
    `_closed`; any thread may call. No I/O here.

    A pinned page (queued for the disk) is never evicted. `backed` says that there is a disk: a page
    that it lacks is not evicted either, but named for writing first, and is owed to the disk from
    `put` until it is there; with `keep_superseded` False one that was superseded is evicted all the
    same. Without `retain` a page leaves as soon as the disk has it. A sequence may push out pages
    of its own that the disk has. `policy` says how young a page must not be to make room for one of
    another sequence.
    """

    def __init__(
        self,
        limit_bytes: int,
        *,
        keep_superseded: bool = True,
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
        self._policy = policy or Lru()
        self._transit = Transit(limit_bytes)
        self._departures = departures or Departures()
        self._keep_superseded = keep_superseded
        self.retain = retain
        self._backed = backed
        self._clock = clock or Clock()
        self._lock = threading.Lock()
        self._index: PageTable[Held] = PageTable(self._policy)
        self._repinned = 0
        self._pinned_bytes = 0
        self._pins_end = FOREVER_NS
        self._passing: set[PageId] = set()
        self._unused: set[PageId] = set()
        self._bytes = 0
        self._reserved = 0
        self._allowed = limit_bytes
        self._dirty_bytes = 0
        self._queued_bytes = 0
        self._peak = 0
        self._evicted = 0
        self._passed = 0
        self._refused = 0
        self._removed: Counter[PageId] = Counter()
        self._lost: dict[PageId, tuple[BlockKey, int]] = {}
        self._dropped = 0
        self.lost_unnamed = False
        self._closed = False

    def reserve(
        self,
        nbytes: int,
        own: Collection[PageId] = (),
        *,
        evict: bool = True,
        give_up_dirty: bool = False,
        position: int | None = None,
        shift_ns: int = 0,
        may_pass: bool = False,
    ) -> Reservation:
        """Set bytes aside for a page about to be made, evicting others as needed.

        Pages of the same sequence (`own`) leave last, and only those that the disk has, or that
        end behind `position`, where the new page does: they are nothing without it. Without
        `evict` only free room is granted. `give_up_dirty` evicts pages of others that the disk
        lacks as well. The page counts as used `shift_ns` later than
        now, and pages of others stay that were used after that, less the policy's patience. What
        they hinder may pass, with `may_pass`: a small share of memory is set aside for that.
        """
        with self._lock:
            now = self._clock.now()
            self._transit.settle(now)
            found = self._victims(
                self._bytes + self._reserved + self._transit.idle + nbytes - self._allowed,
                own,
                position,
                self.limit_bytes // SPARE_SHARE,
                now + shift_ns - self._policy.patience_ns,
                evict=evict and nbytes <= self._allowed,
                give_up_dirty=give_up_dirty,
            )
            passes = found.victims is None and found.young and may_pass
            if passes:
                # What is set aside is there for it.
                excess = self._bytes + self._reserved + nbytes - self._allowed
                has_room = self._transit.has_room(nbytes)
                found = self._victims(excess, own) if has_room else MemoryVictims(None, [])
            if found.victims is None or self._closed:
                return Reservation(refused=found.young and not may_pass, dirty=found.dirty)
            self._evict(found.victims)
            self._reserved += nbytes
            if passes:
                self._transit.enter(nbytes, now)
                self._passed += 1
            self._peak = max(self._peak, self._bytes + self._reserved)
            return Reservation(self._release, nbytes, passes=passes, dirty=found.dirty)

    def allow(self, nbytes: int) -> None:
        """Reserve no more than `nbytes` in all from now on; evicts nothing."""
        with self._lock:
            self._allowed = min(nbytes, self.limit_bytes)

    def shrink(self, nbytes: int, *, give_up_dirty: bool = False) -> bool:
        """Evict down to `nbytes`, as far as pages may leave; True when that was enough.

        `give_up_dirty` as in `reserve`.
        """
        with self._lock:
            excess = self._bytes + self._reserved - nbytes
            victims: list[PageId] = []
            for held in self._index.in_order():
                if excess <= 0:
                    break
                if not held.pins and (give_up_dirty or not self._must_write(held)):
                    victims.append(held.id)
                    excess -= held.nbytes
            self._evict(victims)
            return excess <= 0

    def put(
        self,
        page: Page,
        room: Reservation,
        *,
        dirty: bool,
        stamp_ns: int | None = None,
        began_ns: int = 0,
    ) -> bool:
        """Take a page into the bytes that were reserved for it.

        Its stamp of the clock is now by default; the request that wants it began at `began_ns`.
        False, and the bytes given back, when one that holds as many of its tokens is here.
        """
        meta = page.meta
        with self._lock:
            identity = meta.id
            old = self._index.get(identity)
            if self._closed or (old is not None and old.held >= meta.held):
                self._give_back(room, meta.nbytes)
                return False
            room.take(meta.nbytes)
            self._reserved -= meta.nbytes
            self._take_out(identity)
            if stamp_ns is None:
                self._unused.add(identity)
            else:
                self._policy.wanted([identity], began_ns)
            self._lost.pop(identity, None)
            state = PageState.DIRTY if dirty else PageState.CLEAN
            held = Held(
                page,
                state if self._backed or dirty else PageState.ONLY,
                0 if old is None else old.pins,
                owed=dirty,
                passes=room.passes,
            )
            stamp_ns = self._clock.now() if stamp_ns is None else stamp_ns
            self._index.add(held, max(stamp_ns, self._keep(held)))
            if room.passes:
                self._passing.add(identity)
            self._bytes += meta.nbytes
            self._weigh(held, 1)
            self._events.note_page("stored", "hot", meta)
            return True

    def get(self, page: PageId) -> Page | None:
        """Return the page; it stays valid for as long as the caller holds it."""
        with self._lock:
            held = self._index.get(page)
        return None if held is None else held.page

    def info(self, page: PageId) -> PageInfo | None:
        with self._lock:
            held = self._index.get(page)
        return None if held is None else held.info

    def find_all(self, pages: Iterable[PageId]) -> list[Held | None]:
        with self._lock:
            return self._index.get_all(pages)

    def used_ns(self, page: PageId) -> int | None:
        """Return a page's recency stamp, None for one that is not here."""
        with self._lock:
            held = self._index.get(page)
            return None if held is None else held.stamp_ns

    def pin(self, page: PageId) -> Page | None:
        """Keep a page that the disk lacks in memory until `unpin`, for its write, and return it;
        None for any other page, and for one whose write is queued."""
        with self._lock:
            held = self._index.get(page)
            if held is None or held.pins or not held.unwritten:
                return None
            self._change(held, pins=1)
            return held.page

    def pinned(self, page: PageId) -> Page | None:
        """Return the page that was pinned first, None for one that was removed since."""
        with self._lock:
            held = self._index.get(page)
            return held.page if held is not None and page not in self._removed else None

    def unpin(
        self,
        page: PageId,
        *,
        written: Page | None,
        refused_ns: int | None = None,
        rationed: bool = False,
    ) -> bool:
        """Undo the first `pin`; False when the page was removed since.

        `written` is the version of the page that the disk has now, `refused_ns` the stamp at which
        its budget, or a day's (`rationed`), had no room for the page: one used since is worth more.
        """
        with self._lock:
            if page in self._removed:
                # It may have been stored anew: that is another page to the writer.
                self._removed[page] -= 1
                self._removed += Counter()
                return False
            held = self._index.get(page)
            if held is None:
                return self._closed
            state = held.state
            if held.dirty and written is not None and written.meta.held >= held.held:
                state = PageState.CLEAN
                held.owed = False
            elif held.dirty:
                rejected = refused_ns is not None and held.stamp_ns <= refused_ns
                state = PageState.REJECTED if rejected else PageState.DIRTY
                held.owed = held.owed and (rationed or refused_ns is None)
            self._change(held, state, pins=-1 if held.pins else 0)
            leaves = not self.retain or held.passes
            if leaves and not held.pins and (held.refused or not held.dirty):
                if held.dirty:
                    self._departures.note([page], "disk")
                    self._note_lost(held)
                self._drop(page, "evicted", "refused by the disk" if held.dirty else ON_DISK)
            return True

    def mark_dirty(self, pages: Iterable[PageId]) -> None:
        """Note that the disk has lost pages: what is here of them must be written again."""
        with self._lock:
            for held in self._index.get_all(pages):
                self._set_lost(held, PageState.DIRTY)

    def mark_evicted(self, pages: Iterable[tuple[PageId, int]]) -> None:
        """Note that the disk has evicted pages, each with its stamp there: what is here of them is
        to be written again if it was used since, or is queued, and else once it is used."""
        with self._lock:
            for page, stamp_ns in pages:
                held = self._index.get(page)
                used = held is not None and (held.pins > 0 or held.stamp_ns > stamp_ns)
                self._set_lost(held, PageState.DIRTY if used else PageState.EVICTED)

    def clean(self) -> list[PageId]:
        """Return the pages that the disk has too."""
        with self._lock:
            held = self._index.records()
            return [h.id for h in held if h.state is PageState.CLEAN]

    def owed(self, known: Collection[PageId]) -> dict[PageId, int]:
        """Return those of `known` pages, and of those that have left memory, that were accepted and
        that the disk had neither had nor rejected for its budget; with the tokens that those which
        have left held, 0 for one that is here and may be a later version."""
        with self._lock:
            here = {held.id: 0 for held in self._index.get_all(known) if held and held.owed}
            return here | {page: held for page, (_, held) in self._lost.items()}

    @property
    def dropped(self) -> int:
        """How many pages left memory while they were owed to the disk."""
        return self._dropped

    def forgive(self, namespace: BlockKey) -> None:
        """Owe nothing of a namespace any more: it was cleared."""
        with self._lock:
            self._lost = {page: of for page, of in self._lost.items() if of[0] != namespace}

    def is_dirty(self, page: PageId) -> bool:
        """True for a page that the disk lacks and would take, and whose write is not queued."""
        with self._lock:
            held = self._index.get(page)
            return held is not None and held.unwritten and not held.pins

    def unwritten(self, pages: Iterable[PageId]) -> list[PageId]:
        """Return those of the pages that are here, that the disk lacks, and that it should have;
        those too whose write is queued."""
        with self._lock:
            found = self._index.get_all(pages)
            return [held.id for held in found if held is not None and self._wants_disk(held)]

    def stranded(self) -> list[PageId]:
        """Return the pages that pass and that the disk has failed to take: they are to be written
        whatever the write policy says, or nothing would pass any more."""
        with self._lock:
            held = zip(self._passing, self._index.get_all(self._passing), strict=True)
            return [page for page, h in held if h is not None and h.unwritten and not h.pins]

    def ask_again(self) -> None:
        """Have the disk asked once more for what it has refused."""
        with self._lock:
            for held in self._index.records():
                self._ask_for(held)

    def dirty(self, beyond_bytes: int = 0, *, superseded: bool = True) -> list[PageId]:
        """Return unpinned dirty pages, next to be evicted first, until no more than
        `beyond_bytes` of dirty bytes are left unnamed; when they are more, a few further ones too.
        Refused pages are passed over, and without `superseded` those that need not be kept."""
        named: list[PageId] = []
        with self._lock:
            if self._dirty_bytes - self._queued_bytes <= beyond_bytes:
                return named
            left = self._dirty_bytes
            spare = beyond_bytes // SPARE_SHARE
            for held in self._index.in_order():
                if left <= beyond_bytes - spare:
                    break
                if held.unwritten:
                    if left <= beyond_bytes and beyond_bytes - left + held.nbytes > spare:
                        break
                    left -= held.nbytes
                    if not held.pins and (superseded or self._wants_disk(held)):
                        named.append(held.id)
        return named

    def touch(
        self,
        chain: Iterable[PageId],
        stamp_ns: int | None = None,
        since_ns: int = 0,
        *,
        used: bool = True,
    ) -> None:
        """Mark pages as used at a stamp of the clock, now by default: worth a place on the disk
        again, where that had refused them. Not those used later than that and than `since_ns`.
        `used`: it is a request that wants them, and no later word of one."""
        with self._lock:
            stamp_ns = self._clock.now() if stamp_ns is None else stamp_ns
            loose = list(self._loose(chain))
            latest = max(stamp_ns, since_ns)
            unused = self._unused.intersection(loose) if self._unused else frozenset()
            touched: list[PageId] = []
            if unused:
                # The stamps that they came with are no use's.
                self._policy.wanted(unused, stamp_ns)
                touched = self._index.touch(unused, stamp_ns)
                self._unused -= unused
                loose = [page for page in loose if page not in unused]
            here = self._index.touch(loose, stamp_ns, latest, used=used)
            if used and len(here) < len(loose):
                # What the disk alone has is seen to come back as well.
                absent = [page for page in loose if page not in self._index]
                self._policy.wanted(absent, stamp_ns)
                self._policy.refused(absent, stamp_ns)
            for page in (*touched, *here):
                held = self._index.get(page)
                if held is not None:
                    self._ask_for(held)

    def demote(self, pages: Iterable[PageId], stamp_ns: int | None = None) -> None:
        """Make pages the first to be evicted, the deepest of them first."""
        with self._lock:
            stamp_ns = self._clock.superseded() if stamp_ns is None else stamp_ns
            self._index.touch(self._loose(pages), stamp_ns)

    def repin(self, pages: Sequence[PageId] | None = None) -> Pinned:
        """Keep those of some pages that pins want, root first, and let go of those that they do
        not; None: of all pages, if pins have changed."""
        with self._lock:
            if pages is None:
                if self._repinned == self.pins.version:
                    return Pinned(0, 0, 0)
                self._repinned = self.pins.version
                records = self._index.records()
                found = [h for h in records if h.kept_ns or self._wanted_until(h)]
                found.sort(key=lambda held: (not held.kept_ns, held.position))
            else:
                found = [held for held in self._index.get_all(pages) if held is not None]
            now, nbytes, count = self._clock.now(), 0, 0
            for held in found if self.retain else ():
                was_kept, until_ns = held.kept_ns > 0, self._keep(held)
                if until_ns or was_kept:
                    self._index.touch([held.id], until_ns or now)
                if until_ns:
                    count, nbytes = count + 1, nbytes + held.nbytes
            return Pinned(len(found) if self.retain else 0, count, nbytes)

    def discard(
        self, pages: Iterable[PageId], kind: Kind | None = "removed", detail: str = ""
    ) -> int:
        """Forget pages, pinned or not; return how many there were. `kind` and `detail` are for the
        log of events; None for what the caller tells of as a whole."""
        with self._lock:
            count = 0
            for page in pages:
                self._lost.pop(page, None)
                count += self._drop(page, kind, detail)
            return count

    def close(self) -> None:
        """Forget every page, and take no more, not even what was admitted before."""
        with self._lock:
            self._closed = True
            held = list(self._index)
            for page in held:
                self._take_out(page)
            if held:
                self._events.note_tier("cleared", "hot", detail=f"closed, with {len(held)} pages")

    def tails_of(self, parents: Iterable[BlockKey]) -> set[Tail]:
        with self._lock:
            return self._index.tails_of(parents)

    def branches(self, keys: Collection[BlockKey]) -> set[BlockKey]:
        """Return those of a chain's keys that a page follows which is none of them."""
        with self._lock:
            return self._index.branches(keys)

    @property
    def patience_ns(self) -> int:
        """For how long after its use a page is not given up for a new one."""
        return self._policy.patience_ns

    def refuse(self, pages: Iterable[PageId], began_ns: int) -> None:
        """Note pages that a request wanted which began at a stamp, and that nobody took."""
        with self._lock:
            pages = list(pages)
            self._policy.wanted(pages, began_ns)
            self._policy.refused(pages, began_ns)
            self._refused += len(pages)

    def note_shift(self, stamp_ns: int, used_ns: int) -> None:
        """Note that what gets a stamp was used at another time than that."""
        with self._lock:
            self._policy.shifted(stamp_ns, used_ns)

    def learned(self) -> Learned | None:
        """Return what the policy has learned, None when that is nothing."""
        with self._lock:
            return self._policy.learned()

    def pages(self) -> set[PageId]:
        """Return what is held, in no order."""
        with self._lock:
            return set(self._index)

    def namespaces(self) -> set[BlockKey]:
        """Return whose pages are held."""
        with self._lock:
            return {held.page.meta.namespace for held in self._index.records()}

    def columns(self) -> PageColumns:
        """Return what is held, in no order, as columns."""
        with self._lock:
            held = self._index.records()
        return columns_of(held)

    def entries(self) -> list[HotEntry]:
        """Return what is held, the first to be evicted first."""
        with self._lock:
            held = self._index.ordered()
            return [HotEntry(one.page.meta, one.tier, one.stamp_ns) for one in held]

    def usage(self) -> HotUsage:
        with self._lock:
            return HotUsage(
                len(self._index),
                self._bytes + self._reserved,
                self._peak,
                self.limit_bytes,
                self._allowed,
                self._evicted,
                self._passed,
                self._refused,
                self._policy.patience_ns / 1e9,
            )

    def check_integrity(self, *, idle: bool = False) -> None:
        """Assert that the byte counts, the index and the order agree; `idle`: that nobody has
        anything reserved."""
        with self._lock:
            assert not (idle and self._reserved), self._reserved
            entries = self._index.records()
            held = sum(e.nbytes for e in entries)
            dirty = sum(e.nbytes for e in entries if e.unwritten)
            queued = sum(e.nbytes for e in entries if e.unwritten and e.pins)
            assert self._bytes == held, (self._bytes, held)
            assert self._dirty_bytes == dirty, (self._dirty_bytes, dirty)
            assert self._queued_bytes == queued, (self._queued_bytes, queued)
            assert self._reserved >= 0, self._reserved
            passing = sum(e.nbytes for e in entries if e.passes)
            assert self._pinned_bytes == sum(e.nbytes for e in entries if e.kept_ns)
            assert passing <= self._transit.used <= self._transit.aside, passing
            assert self._passing == {e.id for e in entries if e.passes}
            assert len(entries) == len(self._index)
            assert not (idle and self._removed), self._removed
            self._index.check_integrity()
            assert self._bytes + self._reserved <= self.limit_bytes

    def _victims(
        self,
        excess: int,
        own: Collection[PageId],
        position: int | None = None,
        spare: int = 0,
        until_ns: int = sys.maxsize,
        *,
        evict: bool = True,
        give_up_dirty: bool = False,
    ) -> MemoryVictims:
        """Choose what must leave to make room for `excess` bytes more than there are, for a page
        that ends at `position` of a sequence whose pages are `own`. Own ones leave a `spare`
        amount at a time, those of others if they were used at `until_ns` at the latest."""
        if excess <= 0 or not evict:
            return MemoryVictims([] if excess <= 0 else None, [])
        behind = sys.maxsize if position is None else position
        victims: list[PageId] = []
        dirty: list[PageId] = []
        spared: list[Held] = []
        waiting: list[PageId] = []
        young = False
        # Pins keep pages as long as their share is one of what memory may hold now.
        pins_hold = self._pinned_bytes * SHARE <= self._allowed

        for held in self._index.in_order():
            kept = self._is_kept(held)
            if held.pins or (pins_hold and kept):
                continue
            ours = held.id in own
            if not ours and not kept and held.stamp_ns > until_ns:
                # What comes later in the order is younger still.
                young = True
                break
            if self._must_write(held) and (ours or not give_up_dirty):
                dirty.append(held.id)
            elif not ours:
                victims.append(held.id)
                excess -= held.nbytes
            elif (self._backed and not held.dirty) or held.position > behind:
                spared.append(held)
            elif self._backed and held.unwritten:
                waiting.append(held.id)
            if excess <= 0:
                break
        spare = spare if excess > 0 else 0
        for held in spared:
            if excess <= 0 and held.nbytes - excess > spare:
                break
            victims.append(held.id)
            excess -= held.nbytes
        # Of a sequence's own the root first: what follows it is nothing without it.
        dirty += waiting[::-1]
        return MemoryVictims(None if excess > 0 else victims, dirty, young and excess > 0)

    def _keep(self, held: Held) -> int:
        """Keep a page as long as pins want it, within their share of memory; return until when, 0
        for one that is not kept."""
        if not self.retain or not (self.pins or held.kept_ns):
            return 0
        now, until_ns = self._clock.now(), self._wanted_until(held)
        self._end_pin(held)
        if until_ns <= now:
            return 0
        if not self._has_share(held):
            self._end_pins(now)
        if not self._has_share(held):
            return 0
        held.kept_ns = until_ns
        self._pinned_bytes += held.nbytes
        self._pins_end = min(self._pins_end, until_ns)
        return until_ns

    def _wanted_until(self, held: Held) -> int:
        meta = held.page.meta
        return self.pins.chain_until(meta.namespace, meta.key)

    def _has_share(self, held: Held) -> bool:
        return (self._pinned_bytes + held.nbytes) * SHARE <= self.limit_bytes

    def _end_pin(self, held: Held) -> None:
        self._pinned_bytes -= held.nbytes if held.kept_ns else 0
        held.kept_ns = 0

    def _end_pins(self, now_ns: int) -> None:
        """Let go of pages whose pins have ended."""
        if now_ns < self._pins_end:
            return
        kept = [held for held in self._index.records() if held.kept_ns]
        for held in kept:
            if held.kept_ns <= now_ns:
                self._end_pin(held)
        self._pins_end = min((held.kept_ns for held in kept if held.kept_ns), default=FOREVER_NS)

    def _is_kept(self, held: Held | None) -> bool:
        """True for a page that a pin keeps now."""
        return held is not None and held.kept_ns > 0 and held.kept_ns > self._clock.now()

    def _loose(self, pages: Iterable[PageId]) -> Iterable[PageId]:
        if not self._pinned_bytes:
            return pages
        return [page for page in pages if not self._is_kept(self._index.get(page))]

    def _must_write(self, held: Held) -> bool:
        """True for a page that is written before it may leave."""
        return self._backed and self._wants_disk(held)

    def _wants_disk(self, held: Held) -> bool:
        """True for a page that the disk lacks and that may be asked for again."""
        return held.unwritten and self._is_wanted(held)

    def _is_wanted(self, held: Held) -> bool:
        """False for a page that a longer one has replaced and that need not be kept."""
        return self._keep_superseded or held.stamp_ns > SUPERSEDED_NS

    def _set_lost(self, held: Held | None, state: PageState) -> None:
        """Note that the disk has a page no longer; one that it lacks already stays as it is."""
        if held is not None and held.state is PageState.CLEAN:
            self._change(held, state)

    def _ask_for(self, held: Held) -> None:
        """Have the disk asked again for a page that it had no room for."""
        if held.refused:
            self._change(held, PageState.DIRTY)

    def _note_lost(self, held: Held) -> None:
        """Note that a page leaves; one that a longer page has replaced is owed to nobody."""
        if not held.owed or not self._is_wanted(held):
            return
        self._dropped += 1
        if len(self._lost) < LOST:
            self._lost[held.id] = held.page.meta.namespace, held.held
        else:
            self.lost_unnamed = True

    def _change(self, held: Held, state: PageState | None = None, *, pins: int = 0) -> None:
        self._weigh(held, -1)
        held.become(state or held.state)
        held.pins += pins
        self._weigh(held, 1)

    def _weigh(self, held: Held, sign: int) -> None:
        """Count a page's dirty bytes, or with -1 no longer, before what they depend on changes."""
        nbytes = sign * held.nbytes if held.unwritten else 0
        self._dirty_bytes += nbytes
        self._queued_bytes += nbytes if held.pins else 0

    def _evict(self, victims: Iterable[PageId]) -> None:
        """Drop pages, and note those that no disk has."""
        lost = []
        for page in victims:
            held = self._index.get(page)
            if held is not None and (held.dirty or not self._backed):
                lost.append(page)
                self._note_lost(held)
            self._drop(page, "evicted", "")
            self._evicted += 1
        self._departures.note(lost, "memory")

    def _give_back(self, room: Reservation, nbytes: int) -> None:
        room.take(nbytes)
        self._reserved -= nbytes
        if room.passes:
            self._transit.leave(nbytes)
            self._passed -= 1

    def _release(self, room: Reservation, nbytes: int) -> None:
        with self._lock:
            if room.nbytes:
                self._give_back(room, min(nbytes, room.nbytes))

    def _drop(self, page: PageId, kind: Kind | None, detail: str) -> bool:
        held = self._take_out(page)
        if held is not None and held.pins:
            self._removed[page] += held.pins
        if held is not None and kind is not None:
            self._events.note_page(kind, "hot", held.page.meta, detail)
        return held is not None

    def _take_out(self, page: PageId) -> Held | None:
        held = self._index.pop(page)
        if held is None:
            return None
        self._end_pin(held)
        if held.passes:
            self._transit.leave(held.nbytes)
            self._passing.discard(page)
        self._unused.discard(page)
        self._bytes -= held.nbytes
        self._weigh(held, -1)
        return held
