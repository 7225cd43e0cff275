"""The tiers together: where a page is found, how it is admitted, written, used again and dropped.
One way in (`admit` or `reserve`, then `put`), one way out (`find`, then `held` or `reading`)."""

import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from math import inf
from typing import TYPE_CHECKING, TypeAlias

from omlx_cache_storage.calls import SECONDS, Arguments, is_timeout, uninterrupted
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.errors import PageUnanswered, PageUnreadable
from omlx_cache_storage.events import SILENT, Departures, EventLog
from omlx_cache_storage.eviction.keep import NEVER_NS, SUPERSEDED_NS, Clock, Keep
from omlx_cache_storage.eviction.order import SHIFTS_NS, Ended, Priority
from omlx_cache_storage.hot import ON_DISK, HotTier
from omlx_cache_storage.hot_page import PageState, Reservation, WritePolicy
from omlx_cache_storage.io_threads import DiskThread
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.measures import Counters
from omlx_cache_storage.page import (
    OpenPage,
    Page,
    PageId,
    PageInfo,
    PageMeta,
    Tail,
)
from omlx_cache_storage.pins import PinnedPages, PinRecord, Pins
from omlx_cache_storage.remote.lookups import Asked, Inquiry
from omlx_cache_storage.stats import HotUsage
from omlx_cache_storage.writer import REFUSALS, SETBACKS, Documents, Writer

if TYPE_CHECKING:
    from omlx_cache_storage.remote.tier import RemoteTier
    from omlx_cache_storage.remote.uploads import Uploads

Tier: TypeAlias = HotTier | ColdTier
"""Pages under a budget of bytes. Of a chain the deepest page is evicted first. A page that holds
more of its tokens replaces one that holds less, never the other way round."""

FLUSH_SECONDS = 30.0
LOCK_SECONDS = 2.0
"""How long `clear` waits for peer processes that hold the directory."""
BEHIND_SECONDS = 0.2
"""How long a lookup waits for a directory to be read again: others' pages are worth more."""
NEWS_SECONDS = 0.2
"""How long a lookup waits for what peer processes changed; a disk that answers takes 0.1 ms."""
DIRTY_SHARE = 0.9
"""With `lazy`: the share of memory that dirty pages may take before the oldest of them are
queued."""
STARVED_ROUNDS = 32
"""How often a flush finds the queue full of other pages before it ends: without a deadline it would
go on as long as others store."""
RUN_BYTES = 8 << 20
RUN_SHARE = 32
"""Pages are admitted together up to so many bytes, and up to this share of the hot tier."""


Besides: TypeAlias = Callable[[Sequence[Tier]], Iterable[PageId]]
"""Names more pages for the first of some tiers. A sequence can have as many bytes there as the
smallest of them has."""


class Tiers:
    """A hot tier, and behind it a cold one with its writer, or none.

    Any thread may call any method; only `flush`, `clear`, `wait_for_writer`, `stop_writing` and
    `reading` wait for a disk, and `meta` of a page that is not in memory. The parts guard
    themselves; each change of `clearing`, the namespaces that are being cleared, is atomic.
    """

    def __init__(
        self,
        *,
        hot_bytes: int,
        queue_bytes: int,
        policy: WritePolicy,
        clock: Clock,
        cold: ColdTier | None,
        documents: Documents,
        departures: Departures | None = None,
        eviction: Keep | None = None,
        writer: type[Writer] = Writer,
        events: EventLog = SILENT,
        remote: "RemoteTier | None" = None,
        opening: Callable[[], None] = lambda: None,
    ) -> None:
        self.closed = False
        self.clearing: list[BlockKey] = []
        self.remote = remote
        self.uploads: Uploads | None = None
        self.counters = Counters()
        self.arguments = Arguments(partial(self.counters.add, ignored_hints=1))
        self.events = events
        self.departures = departures or Departures()
        self._policy = policy
        self._clock = clock
        self.pins = Pins() if cold is None else cold.pins
        self.hot = HotTier(
            hot_bytes or queue_bytes,
            writes=policy,
            retain=hot_bytes > 0,
            backed=cold is not None,
            clock=clock,
            departures=self.departures,
            # Without memory of their own pages leave when they are written.
            policy=eviction if hot_bytes else None,
            events=events,
            pins=self.pins,
        )
        self.held, self.refuse = self.hot.get, self.hot.refuse
        self.retains = self.hot.retain
        self.cold = cold
        self._levels: tuple[Tier, ...] = (self.hot,) if cold is None else (self.hot, cold)
        self._sources: Sequence[Tier | RemoteTier] = (
            self._levels if remote is None else (*self._levels, remote)
        )
        self.writer: Writer | None = None
        self._news = DiskThread("omlx-cache-news")
        if cold is not None:
            self.writer = writer(
                self.hot, cold, min(queue_bytes, self.hot.limit_bytes), documents, events, opening
            )
            self.writer.start()

    def find(self, page: PageId, *, here: bool = False) -> PageInfo | None:
        """Return where a page lies, the tier that holds more of it first; None in closed tiers.
        `here`: without what other machines have. Reads nothing."""
        return self.find_all([page], here=here)[0]

    def find_all(self, pages: Sequence[PageId], *, here: bool = False) -> Sequence[PageInfo | None]:
        if self.closed:
            return [None] * len(pages)
        best = self.hot.find_all(pages)
        for tier in (self._levels if here else self._sources)[1:]:
            for at, (known, found) in enumerate(zip(best, tier.find_all(pages), strict=True)):
                if found is not None and (known is None or found.held > known.held):
                    best[at] = found
        return best

    def tails_of(self, parents: Sequence[BlockKey]) -> set[Tail]:
        tails = set[Tail]()
        for tier in self._sources:
            tails |= tier.tails_of(parents)
        return tails

    @property
    def asks(self) -> bool:
        return self.remote is not None and not self.closed

    def ask(self, inquiry: Inquiry, timeout: float | None = None) -> Asked:
        """Ask other machines for their pages of a chain; waits as long as their tier may, `timeout`
        seconds at most."""
        return Asked(news=False) if self.remote is None else self.remote.ask(inquiry, timeout)

    @property
    def generation(self) -> int:
        return 0 if self.cold is None else self.cold.sharing.generation

    def refresh(self, timeout: float = inf) -> bool:
        """Take over what peer processes changed on the disk; False when that was nothing. Another
        thread asks the disk, and this waits `NEWS_SECONDS` at most for it. Where changes were
        missed, it waits `BEHIND_SECONDS` for the writer's thread, which reads the directory. Waits
        `timeout` seconds at most in all."""
        deadline = time.monotonic() + timeout
        cold, writer = self.cold, self.writer
        if cold is None or writer is None or self.closed:
            return False
        if self._news.ask(cold.refresh, min(NEWS_SECONDS, timeout), False):
            return True
        if not cold.sharing.fell_behind or writer.settling:
            # A disk that does not answer is waited for once, not by each lookup.
            return False
        left = max(0.0, deadline - time.monotonic())
        return writer.settle(min(BEHIND_SECONDS, left)) and not cold.sharing.fell_behind

    def hidden(self, pages: Sequence[PageId]) -> Mapping[PageId, str]:
        """Return the pages that are on the disk, or known of other machines, and that `find` hides,
        with the word for why; reads nothing."""
        hidden = {} if self.remote is None else dict(self.remote.hidden(pages))
        return hidden if self.cold is None else {**hidden, **self.cold.hidden(pages)}

    def reading(self, page: PageId) -> AbstractContextManager[OpenPage]:
        """Open a page that is not in memory; raises PageError inside the `with` statement."""
        if self.remote is not None and self._is_far(self.remote, page):
            return self.remote.reading(page)
        if self.cold is None:
            raise PageUnreadable("there is no cold tier")
        return self.cold.reading(page)

    def _is_far(self, remote: "RemoteTier", page: PageId) -> bool:
        stored = None if self.cold is None else self.cold.info(page)
        far = remote.find_all([page])[0]
        return stored is None or (far is not None and far.held > stored.held)

    def unanswered(self, page: PageId) -> PageUnanswered:
        if self.cold is not None:
            self.cold.unanswered(page)
        return PageUnanswered("the disk does not answer")

    def meta(self, page: PageId) -> PageMeta:
        """Return a page's description, from memory or from its file's header; raises PageError."""
        held = self.hot.get(page)
        if held is not None:
            return held.meta
        if self.remote is not None and self._is_far(self.remote, page):
            return self.remote.meta(page)
        with self.reading(page) as reader:
            return reader.meta

    @property
    def deletions(self) -> int:
        return self.hot.deletions + self._peer_deletions

    @property
    def _peer_deletions(self) -> int:
        return 0 if self.cold is None else self.cold.sharing.deletions

    def admit(
        self,
        nbytes: int,
        own: Collection[PageId] = (),
        *,
        queue: bool = True,
        position: int = sys.maxsize,
        priority: Priority = "normal",
        prepared: bool = False,
    ) -> Reservation:
        """Reserve memory for a page about to be made, as `HotTier.reserve` does. Never waits.

        With `queue` nothing is reserved either when the policy writes a page at once and the writer
        has no room for it. Pages that must be written before they can leave are queued, so that
        another try may succeed. A page that the eviction policy has no place for may pass through
        memory to the disk. One that is `prepared` is not queued, and evicts no page that was used.
        """
        if self.closed:
            return Reservation()
        fails = self.cold is not None and bool(self.cold.trouble)
        writer = self.writer if queue and not (fails or prepared) else None
        if writer and self._policy.at_once and not writer.has_room(nbytes):
            return Reservation()
        reserve = partial(
            self.hot.reserve,
            nbytes,
            own,
            position=position,
            shift_ns=SHIFTS_NS[priority],
            prepared=prepared,
        )
        room = reserve(may_pass=writer is not None)
        if room.passes and writer and not writer.has_room(nbytes):
            room.release()
            return Reservation()
        if not room and fails and not prepared:
            return reserve(give_up_dirty=True)
        if not room and self.writer:
            self.writer.offer(room.dirty)
        return room

    def admit_run(
        self,
        nbytes: int,
        count: int,
        own: Collection[PageId] = (),
        *,
        position: int = sys.maxsize,
        most: int = 0,
        priority: Priority = "normal",
        prepared: bool = False,
    ) -> Reservation:
        """Reserve memory for pages of one sequence and `nbytes` each, in one step: for `count` at
        most, and `most` bytes, or `RUN_BYTES`. The deepest ends at `position`. Never waits, queues
        nothing. Without any they must be admitted one by one: large pages are, and all where room
        is scarce."""
        writer = self.writer
        most = min(most or RUN_BYTES, self.hot.limit_bytes // RUN_SHARE)
        total = min(count, most // max(1, nbytes)) * nbytes
        if total < 2 * nbytes or self.closed:
            return Reservation()
        # One page may be larger than the queue; a run may not.
        queued = self._policy.at_once and not prepared
        if writer and queued and (total > writer.limit_bytes or not writer.has_room(total)):
            return Reservation()
        return self.hot.reserve(
            total, own, position=position, shift_ns=SHIFTS_NS[priority], prepared=prepared
        )

    def put(
        self,
        page: Page,
        room: Reservation,
        stamp_ns: int | None = None,
        *,
        began_ns: int = 0,
        prepared: int | None = None,
    ) -> bool:
        """Take a page, made or read, into its reservation, and queue it for the disk as the write
        policy says. False when the disk had it already, so that it only came back into memory, or
        when another thread was faster."""
        cold, writer, meta = self.cold, self.writer, page.meta
        stored = None if cold is None else cold.info(meta.id)
        on_disk = stored is not None and stored.held >= meta.held
        more = stored is not None and stored.held > meta.held
        if more or (on_disk and (room.passes or not self.hot.retain)):
            # A page that the disk has must not be shorter in memory.
            room.release(meta.nbytes)
            return False
        dirty = cold is not None and not on_disk
        taken = self.hot.put(
            page,
            room,
            dirty=dirty,
            stamp_ns=stamp_ns,
            began_ns=began_ns,
            prepared=None if prepared is None else prepared - self._peer_deletions,
        )
        if cold is not None and taken and on_disk and cold.info(meta.id) is None:
            # It has left the disk meanwhile, when it was not here to be marked.
            self.hot.mark_lost([(meta.id, NEVER_NS)])
        if on_disk or not taken:
            return False
        self.counters.add(stored_pages=1, stored_bytes=meta.nbytes)
        if prepared is not None:
            return True
        if self.uploads is not None:
            self.uploads.stored(meta.id)
        if writer and (self._policy.at_once or room.passes):
            # Without room in the queue it stays here until the writer takes it up.
            writer.offer([meta.id])
        elif writer and writer.has_room(meta.nbytes):
            share = int(self.hot.limit_bytes * DIRTY_SHARE)
            writer.offer(self.hot.dirty(beyond_bytes=share))
        return True

    def reserve(
        self, nbytes: int, page: PageId | None = None, *, prepared: bool = False
    ) -> Reservation:
        """Set aside memory for a page about to be read, which `put` takes.

        Evicts nothing, and reserves nothing where no page stays once the disk has it. One that
        comes from another machine is admitted as if it had been computed, or `prepared`, here.
        """
        if page is not None and self.remote is not None and self._is_far(self.remote, page):
            return self.admit(nbytes, prepared=prepared)
        return self.hot.reserve(nbytes, evict=False) if self.hot.retain else Reservation()

    def stamp(self, priority: Priority = "normal", ended: Ended | None = None) -> int:
        """Return the stamp of a use, which places its pages in the order. A finished turn counts as
        earlier by the patience, the age from which on a new page evicts others; not with a high
        priority."""
        is_over = ended == "turn" and priority != "high"
        early = max(tier.patience_ns for tier in self._levels) if is_over else 0
        now = self._clock.now()
        stamp = now + SHIFTS_NS[priority] - early
        if stamp != now:
            for tier in self._levels:
                tier.note_shift(stamp, now)
        return stamp

    def last_stamp(self) -> int:
        """Return a stamp of pages that are evicted before all others; `touch` moves nothing to
        it."""
        return self._clock.superseded()

    def touch(
        self,
        chain: Sequence[PageId],
        stamp_ns: int | None = None,
        besides: Besides | None = None,
        since_ns: int = 0,
        *,
        used: bool = True,
    ) -> None:
        """Give the pages of a chain a stamp, now by default. All at once: a page written at the new
        stamp makes no room among pages of another use.

        `besides` names more pages, for each tier by what that tier has. A page that was used later
        than both the stamp and `since_ns` is skipped. Marked pages are evicted last, the root last
        of all. Pages that the write policy wants on the disk by now are queued, the root first.
        `used`: True for an access, False for a reorder.
        """
        stamp = self._clock.now() if stamp_ns is None else stamp_ns
        if stamp <= SUPERSEDED_NS:
            return
        marked: list[tuple[Tier, list[PageId]]] = []
        for level, tier in enumerate(self._levels):
            more = () if besides is None else besides(self._levels[level:])
            marked.append((tier, [*chain, *more]))
        # A reorder marks the disk first. Else a page written meanwhile at the new stamp would find
        # its own chain at the old one, too young to make room. It marks the disk again for pages
        # being written at the old stamp.
        for tier, pages in marked if used else [*marked[1:], *marked]:
            tier.touch(pages, stamp, since_ns, used=used)
        if used and self.uploads is not None:
            self.uploads.used(chain)
        if self._policy.at_once and self.writer:
            self.writer.offer(chain)

    @uninterrupted
    def pin(self, namespace: BlockKey, pages: Sequence[PageId], seconds: float) -> PinnedPages:
        """Pin the pages of a chain, root first, for so many seconds, as far as they fit into each
        tier's share.

        Later pages of the chain are pinned too. The pin counts here at once, and for peer processes
        and after a restart once the writer's thread has written it.
        """
        now, keys = self._clock.now(), tuple(dict.fromkeys(page.key for page in pages))
        pin = PinRecord("key", keys[-1].hex(), now, now + int(seconds * 1e9), namespace, keys)
        if not self.pins.add(pin):
            return PinnedPages(None, [])
        found = [tier.repin(pages) for tier in self._levels]
        self._write_pins_down()
        return PinnedPages(pin, found)

    @uninterrupted
    def unpin(self, pin: PinRecord) -> None:
        self.pins.remove(pin)
        self.hot.repin()
        self._write_pins_down()

    def _write_pins_down(self) -> None:
        if self.writer is not None:
            self.writer.settle(0.0)

    def branches(self, keys: Collection[BlockKey]) -> set[BlockKey]:
        return set().union(*(tier.branches(keys) for tier in self._levels))

    @uninterrupted
    def demote(self, pages: Iterable[PageId]) -> None:
        if pages := list(pages):
            stamp = self._clock.superseded()
            for tier in self._levels:
                tier.demote(pages, stamp)

    @uninterrupted
    def shrink_hot(self, nbytes: int) -> bool:
        return self.hot.shrink(nbytes)

    def restrict_hot(self, nbytes: int) -> int:
        """Let memory hold no more than `nbytes` for now, evict down to that, and return how many
        bytes came free at once.

        Pages that the write policy wants on the disk are queued first, and leave with a later call,
        unless the disk fails.
        """
        self.hot.allow(nbytes)
        failing = self.cold is not None and bool(self.cold.trouble)
        before = self.hot.usage().nbytes
        if self.writer and before > nbytes and not failing:
            self.writer.offer(self.hot.dirty(beyond_bytes=nbytes))
        self.hot.shrink(nbytes, give_up_dirty=failing)
        return max(0, before - self.hot.usage().nbytes)

    @uninterrupted
    def hot_usage(self) -> HotUsage:
        return self.hot.usage()

    def stop_writing(self, timeout: float) -> bool:
        """End the writer, within `timeout` seconds; False when something was left unwritten. Its
        thread leaves the disk to other processes."""
        self._news.stop()
        return self.writer is None or self.writer.stop(timeout)

    def end_soon(self) -> None:
        if self.writer is not None:
            self.writer.end_soon()

    def without_owner(self) -> "Tiers":
        """Return these very tiers as an object of their own: who holds it keeps nothing alive that
        a derived class has from now on."""
        twin = object.__new__(Tiers)
        twin.__dict__.update(self.__dict__)
        return twin

    def forget(self, page: PageId) -> None:
        """Delete a page that proved useless, and back off from other machines' copy of it for a
        while."""
        self.departures.note([page], "damaged")
        held = self.hot.get(page)
        if held is not None:
            self.events.note_page("failed", "hot", held.meta, "it could not be restored")
        self.hot.discard([page])
        if self.cold is not None:
            self.cold.discard([page], later=True)
        if self.remote is not None:
            self.remote.shun(page)

    @uninterrupted
    def clear(self, namespace: BlockKey, timeout: float = FLUSH_SECONDS) -> int:
        """Delete every page of a namespace and return how many were deleted. No earlier page is
        restored again, here or after a restart. When the disk, or a peer process, prevents a
        deletion for `timeout` seconds, it is done later. Only a disk that also rejects a new name,
        or that is away until the process ends, may bring a page back. Waits for a page that is
        being written now."""
        deadline = time.monotonic() + timeout
        self.clearing.append(namespace)
        try:
            held, found, deleted = self.hot.clear(namespace), set[PageId](), set[PageId]()
            self.departures.note(held, "removed")
            if self.cold is not None and self.writer is not None:
                self.writer.wait_for_progress(timeout)
                # Pages of peer processes are deleted, too.
                self.refresh()
                # Half for the directory's lock: the other half is for deleting without it.
                left = max(0.0, deadline - time.monotonic())
                found, deleted = self.cold.clear(namespace, min(LOCK_SECONDS, left / 2))
                self.departures.note(found, "removed")
        finally:
            self.clearing.remove(namespace)
        # Last: a page stored meanwhile is rather missed than believed to be there.
        self.events.note_tier("cleared", "hot", namespace, f"{len(held)} pages")
        if self.cold is not None:
            self.events.note_tier("cleared", "cold", namespace, f"{len(deleted)} pages")
        return len((held - found) | deleted)

    @uninterrupted
    def leave_memory(self, namespace: BlockKey) -> int:
        """Evict the pages of a namespace from memory, as far as the disk has them; return their
        bytes. Pages in use stay valid."""
        cold = self.cold
        if cold is None:
            return 0
        # Not a page that is being written: the writer deletes one that is removed meanwhile.
        held = [
            one
            for one in self.hot.entries()
            if one.namespace == namespace and one.state is not PageState.QUEUED
        ]
        gone = [
            one
            for one, info in zip(held, cold.find_all([one.id for one in held]), strict=True)
            if info is not None and info.held >= one.held
        ]
        self.hot.discard([one.id for one in gone], "evicted", ON_DISK)
        return sum(one.nbytes for one in gone)

    def delete(
        self, pages: Mapping[PageId, int], timeout: float = 0.0, *, disk_only: bool = False
    ) -> int:
        """Delete pages, each with its stamp, from both tiers, or from the disk only, where memory
        keeps its pages; return how many the disk had. Waits for one that is being written. Each is
        an event."""
        self.departures.note(pages, "removed")
        if disk_only:
            # First: the writer's own report of the deletion to memory comes too late then.
            self.hot.mark_lost(pages.items())
        else:
            self.hot.discard(pages)
            # A page that is being written now would appear after the deletion.
            self.wait_for_writer(timeout)
        return 0 if self.cold is None else self.cold.discard(pages)

    @property
    def writes_ended(self) -> int:
        return 0 if self.writer is None else self.writer.ended()

    def wait_for_writer(self, timeout: float, since: int | None = None) -> bool:
        """Block until the writer has done a page, since `writes_ended` was `since`; False at the
        timeout, or when none is pending."""
        return self.writer is not None and self.writer.wait_for_progress(timeout, since)

    @uninterrupted
    def flush(self, timeout: float | None = FLUSH_SECONDS) -> bool:
        """Block until each page that was stored before the call has been on the disk, as durable as
        `durability` says. False after `timeout` seconds, when the disk failed or a day's writes
        rejected one of them, or when others keep the queue full.

        A page that the disk's budget evicted or rejected is counted, and not waited for. A page
        that left memory before the disk had it makes this False until it is stored again or
        cleared. A page that the disk rejected, because others were used there a short while ago, is
        written after all, in their place.
        """
        writer, cold = self.writer, self.cold
        timeout = self.arguments.known("timeout", timeout, is_timeout, FLUSH_SECONDS, SECONDS)
        if writer is None or cold is None:
            return True
        # The root of a chain first.
        known = [held.id for held in reversed(self.hot.entries())]
        with cold.evictor.impatient():
            if writer.ended(*REFUSALS):
                self.hot.ask_again()
            done = self._write_all(writer, known, inf if timeout is None else timeout)
        owed = self.hot.owed(known)
        for info, held in zip(cold.find_all(list(owed)), owed.values(), strict=True):
            done = done and info is not None and info.held >= held
        return done and not self.hot.lost_unnamed

    def _write_all(self, writer: Writer, known: Sequence[PageId], timeout: float) -> bool:
        """Block until the queued pages are done and no known page is dirty. False after `timeout`
        seconds, when the disk failed twice, or when others keep the queue full."""
        deadline = time.monotonic() + timeout
        retried, starved, fewest = False, 0, len(known) + 1
        while starved < STARVED_ROUNDS:
            # Queued before the barrier: a page that the idle writer takes up behind it would look
            # durable, and be pending.
            queued = writer.offer(self.hot.unwritten(known))
            setbacks = writer.ended(*SETBACKS)
            if not writer.flush(max(0.0, deadline - time.monotonic())):
                return False
            failing = writer.ended(*SETBACKS) > setbacks
            lacking = len(self.hot.unwritten(known))
            if failing and (retried or not lacking):
                return False
            if queued and not lacking:
                return True
            retried = retried or failing
            starved = starved + 1 if lacking >= fewest else 0
            fewest = min(fewest, lacking)
        return False
