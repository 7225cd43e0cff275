"""The cold tier: one immutable safetensors file per page, under a budget of physical bytes."""

import contextlib
import errno
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from omlx_cache_storage.cold.budget import IGNORED_SHARES, Budget, agree, own_limit
from omlx_cache_storage.cold.catalog import Inventory, take_inventory, uncollected
from omlx_cache_storage.cold.changes import (
    Added,
    Cancelled,
    Change,
    Rebudgeted,
    Repinned,
    Reserved,
)
from omlx_cache_storage.cold.contents import Candidate, Contents, PageFile, Victims
from omlx_cache_storage.cold.disk import (
    SMALL_FILE_BYTES,
    Descriptor,
    Durability,
    FileSystem,
    physical_bytes,
)
from omlx_cache_storage.cold.health import NO_ROOM, UNAVAILABLE, Health
from omlx_cache_storage.cold.held import AHEAD_NS, HeldPages
from omlx_cache_storage.cold.ledger import (
    HOLD_FILES,
    SMALLEST_BYTES,
    WAIT_SECONDS,
    LedgerBusy,
    ledger_bytes,
)
from omlx_cache_storage.cold.ration import Ration
from omlx_cache_storage.cold.root import DirectoryGone, Root
from omlx_cache_storage.cold.sharing import Flight
from omlx_cache_storage.cold.small_files import (
    encode_budget,
    pins_bytes,
    read_budget,
    read_pins,
    room_for,
    write_budget,
    write_pins,
)
from omlx_cache_storage.cold.temporary import TemporaryNames
from omlx_cache_storage.events import SILENT, Departures, EventLog
from omlx_cache_storage.eviction.ages import Learned
from omlx_cache_storage.eviction.keep import Clock, Keep, Lru
from omlx_cache_storage.format.header import encode_header, payload_checksum
from omlx_cache_storage.format.names import (
    BUDGET_FILE,
    ENTRY_BYTES,
    LEDGER_FILE,
    PINS_FILE,
    StoredPage,
    name_of,
    parse_name,
    shard_of,
)
from omlx_cache_storage.hints import PinRecord
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Buffer, Page, PageId, WriteResult
from omlx_cache_storage.stats import ColdUsage

_log = logging.getLogger(__name__)

NO_ROOM_TRIES = 3
"""How often room is made for a page that the disk had none for, each time twice as much."""
FILE_SLACK_BYTES = 16 * 1024
"""More than a file takes beside header and payload: its last block, and its name."""
DIRECTORY_SLACK_BYTES = 12 * 1024
"""More than small files take while they are replaced."""
SCANS = 3
"""How often a directory is read that changes faster than it is followed, before it is left alone
for a while."""
SCAN_SECONDS = WAIT_SECONDS / 4
"""For so long, at most, everybody else waits for a directory to be read."""
ELSEWHERE_SECONDS = 1.0
"""For so long a page is waited for that another process is writing."""
_PAUSE_SECONDS = 0.002
LOOKED_AHEAD = 1024
"""Pages whose use by others is asked for at a time, at most."""


@dataclass(slots=True)
class Writing:
    """A page on its way to the disk. Belongs to the thread that writes.

    `wanted` is as large as its file may become. Room is made in turns with others: `reserves` some
    under the name of its temporary file, `described` bytes of it for its namespace's document, and
    `short` of so many on the disk itself (None: not asked yet). `opened` is its file, and `before`
    the one that was there when that was begun.
    """

    candidate: Candidate
    wanted: StoredPage
    parent: BlockKey
    document: Mapping[str, object]
    pieces: list[Buffer]
    temporary: str
    path: str
    described: int = 0
    reserves: bool = False
    short: int | None = None
    before: PageFile | None = None
    opened: Descriptor = field(default_factory=partial(Descriptor, -1))

    @property
    def file(self) -> str:
        return os.path.basename(self.temporary)


class HeldEnough(Exception):
    """A part of the room is made and reserved; others have the directory before the rest is."""


class ColdTier(HeldPages):
    """Holds page files; physical bytes, temporary files and directories included, stay under
    `limit_bytes`, the directory's budget, whoever writes them.

    `_lock` guards `limit_bytes`, `_own_limit` (where this process stops writing), `_impatient` and
    the counts `_peak`, `_ignored`, `_evicted`, `_refused`, `_written` and `_rewritten` (bytes) as
    well. Any thread may read and discard; `open`, `write`, `settle` and `close` belong to one
    thread at a time.
    """

    def __init__(
        self,
        directory: Path,
        limit_bytes: int,
        *,
        min_free_bytes: int = 0,
        durability: Durability = "none",
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        encode: Callable[[Page], Page] | None = None,
        departures: Departures | None = None,
        daily_bytes: int = 0,
        policy: Callable[[Learned | None], Keep] = Lru,
        derived: bool = False,
        events: EventLog = SILENT,
        memory: Path | None = None,
        parents: bool = False,
    ) -> None:
        super().__init__(
            directory,
            fs or FileSystem(),
            departures or Departures(),
            policy,
            clock or Clock(),
            durability,
            events,
        )
        self._flights = self._sharing.flights
        self._root = Root(directory, self._fs, durability, memory, parents=parents)
        self.limit_bytes = limit_bytes
        self._wanted = limit_bytes
        self._derived = derived
        self._budget_of: Callable[[int], int] | None = None
        self._own_limit: int | None = None
        self._pinned = (0, limit_bytes)
        self._names = TemporaryNames()
        self._noted = ""
        self._min_free = min_free_bytes
        self._encode = encode
        self._peak = 0
        self._ignored = 0
        self._evicted = 0
        self._refused = 0
        self._impatient = 0
        self._written = 0
        self._rewritten = 0
        self._once_written = Departures()
        self._ration: Ration | None = None
        if daily_bytes:
            self._ration = Ration(directory, daily_bytes, self._fs, self._clock, durability)

    def open(self, budget: Callable[[int], int] | None = None) -> None:
        """Make the directory, delete leftovers of dead writers, index what is there, and evict
        down to the budget. What this process wants of it `budget` may derive from the bytes found.

        One that went away, or whose parents are missing, is not made. A disk that refuses leaves an
        empty tier whose state says why, and is asked again by `write` and `settle`; nothing raises.
        """
        self._budget_of = budget
        with self._lock:
            self._health.begin_open()
        with contextlib.suppress(OSError):
            self._load()
        if self._ration is not None:
            self._ration.open()
        self._shrink()
        with self._lock:
            self._peak = self._used_bytes()

    def _load(self) -> None:
        """Index the directory if it is not the one that was indexed; raises OSError."""
        was_away = self._health.state.startswith(UNAVAILABLE)
        try:
            if self._sharing.follows and self._files.is_ours():
                with self._lock:
                    self._health.end_open()
            else:
                self._index()
        except OSError as error:
            if isinstance(error, DirectoryGone):
                self._lose_all()
            with self._lock:
                known = self._health.state
                self._health.fail_open(error)
                news = self._health.state != known
            if news:
                _log.warning("no cold tier: %s", error.strerror or error)
            raise
        if was_away:
            _log.warning("the cold tier is there again: %s", self.directory)

    def _lose_all(self) -> None:
        """Know no page while the directory is gone: what memory has is written nowhere, then."""
        self._sharing.is_lost = True
        with self._lock:
            before, self._contents = self._contents, Contents(self._make_policy(self._learned()))
            self._missing += before
            self._unrecorded.clear()

    def _learned(self) -> Learned | None:
        return self._contents.policy.learned()

    @uncollected()
    def _index(self) -> None:
        """Read the directory, and go on from there; raises OSError."""
        # Of one that changed too fast to be followed, what is known of recency is not lost.
        self._record_recency()
        self._root.have(deleted=self._sharing.was_deleted)
        self._files.open()
        try:
            self._sharing.enter(ledger_bytes(self.limit_bytes))
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self._make_way()
            self._sharing.enter(ledger_bytes(self.limit_bytes))
        self._root.remember(self._sharing.ledger.identity)
        self._files.count_small(LEDGER_FILE, self._sharing.ledger.nbytes)
        took = 0.0
        for tries_left in reversed(range(SCANS)):
            # Others that are faster still wait the last time, if it is not for long.
            alone = not tries_left and took <= SCAN_SECONDS
            try:
                with self._sharing.ledger.held() if alone else contextlib.nullcontext():
                    if alone:
                        self._sharing.ledger.skip()
                    began = time.monotonic()
                    self._clear_first()
                    contents, found = self._read_directory()
                    took = time.monotonic() - began
                    self._go_on_from(contents, found)
                return
            except LedgerBusy:
                if not self.is_lost or not tries_left:
                    raise
                self._sharing.ledger.skip()

    def _clear_first(self) -> None:
        """Clear what was cleared while the directory was not there, or was being read."""
        with self._lock:
            cleared, self._cleared = self._cleared, set()
        for namespace in cleared:
            with contextlib.suppress(OSError):
                self._files.set_aside(namespace)
        self._files.remove_cleared()

    def _go_on_from(self, contents: Contents, found: Inventory) -> None:
        """Index what was read, and take in what others changed meanwhile; raises OSError,
        LedgerBusy when that is too much."""
        self._begin_with(contents, found)
        if self._sharing.read_only:
            self._agree()
            return
        for start in range(0, len(found.useless), HOLD_FILES):
            with self._changing():
                for path in found.useless[start:][:HOLD_FILES]:
                    # It may have been published by now.
                    name = parse_name(os.path.basename(path))
                    if name is None or not self._is_indexed(name):
                        with contextlib.suppress(OSError):
                            self._fs.remove(path)
        with self._changing():
            self._tell(*self._files.clear_up(found))
            self._agree()

    def _make_way(self) -> None:
        """Delete what leaves first, for a ledger that the disk has no room for; raises OSError.

        Nobody need be told: where there is none, nobody follows it."""
        contents, _ = self._read_directory()
        victims = contents.victims(min(2 * SMALLEST_BYTES, contents.nbytes)).pages
        for file in filter(None, map(contents.file, victims)):
            self._fs.remove(self._path(file.stored))
        with self._lock:
            self._evicted += len(victims)
            self._departures.note(victims, "disk")

    def _read_directory(self) -> tuple[Contents, Inventory]:
        """Return what is in the directory; raises OSError."""
        now = time.time_ns()
        inventory = take_inventory(self.directory, self._fs)
        ahead = {page.name.id for page, at_ns in inventory.pages if at_ns > now + AHEAD_NS}
        with self._lock:
            self._unrecorded |= ahead
            learned = self._learned()
        contents = Contents(self._make_policy(learned))
        files = ((page, min(at_ns, now)) for page, at_ns in inventory.pages)
        inventory.useless.extend(map(self._path, contents.fill(files)))
        inventory.pages.clear()
        return contents, inventory

    def _begin_with(self, contents: Contents, found: Inventory) -> None:
        """Take what was read for what is there; what others changed meanwhile is followed next."""
        with self._sharing.beginning(found.under_way, FILE_SLACK_BYTES), self._lock:
            if self._cleared:
                raise LedgerBusy(errno.EAGAIN, "a namespace was cleared while it was read")
            before, self._contents = self._contents, contents
            for file in self._doomed.take():
                self._drop_again(file)
            self._refused_rank = None
            self._missing += [page for page in before if page not in contents]
            self._unrecorded = {page for page in self._unrecorded if page in contents}
            self._health = Health()
            self._ignored = found.ignored
            self._events.note_tier("resynced", "cold", detail=f"read, with {len(contents)} pages")
        # Now without what was in flight before: it may have been published since.
        with self._lock:
            self._note_peak()

    def _agree(self) -> None:
        """Agree with other processes on a budget; the directory is held, or cannot be changed."""
        used = self._known_bytes()
        if self._budget_of is not None:
            self._wanted = self._budget_of(used)
        known = read_budget(self.directory, self._fs)
        agreed = agree(
            known,
            self._wanted,
            derived=self._derived,
            alone=self._may_replace(known),
            used_bytes=used,
        )
        if agreed.write and not self._sharing.read_only:
            try:
                write_budget(self.directory, agreed.budget, self._names, self._fs)
                self._tell(Rebudgeted())
            except OSError as error:
                # A full disk serves what it has, and makes room: whoever comes next writes it down.
                if error.errno not in NO_ROOM:
                    raise
        notes = [agreed.note, IGNORED_SHARES if agreed.budget.shares else ""]
        note = "; ".join(filter(None, notes))
        if note and note != self._noted:
            _log.warning("%s", note)
        self._noted = note
        self._go_by(agreed.budget, agreed.own_limit)
        self._heed_pins(anew=True)

    def _may_replace(self, known: Budget | None) -> bool:
        """True when a budget that a store set is this one's to change; the directory is held."""
        return self._sharing.is_alone()

    def _heed_budget(self) -> None:
        """Go by the directory's budget if it was changed; the directory is held."""
        if self._sharing.rebudgeted:
            budget = read_budget(self.directory, self._fs)
            if budget is not None:
                self._go_by(budget, own_limit(budget, self._wanted, derived=self._derived))
            self._sharing.rebudgeted = False
        self._heed_pins()

    def _heed_pins(self, *, anew: bool = False) -> None:
        """Go by the directory's pins if they were changed, here or elsewhere, if one has ended, or
        `anew`; the directory is held, or cannot be changed. A disk that refuses leaves things as
        they are."""
        pins, now = self.pins, self._clock.now()
        changed = anew or pins.is_unwritten or self._sharing.repinned
        try:
            if changed or (pins and pins.end_ns <= now):
                filed = read_pins(self.directory, self._fs)
                wanted = pins.merged(filed, now)
                self._file_pins(filed, wanted)
            if pins:
                with self._lock:
                    here = [name for name, taken in self._contents.taken.items() if taken]
                pins.learn(here)
        except OSError:
            return
        pinned = (pins.version, self.limit_bytes)
        if anew or self._pinned != pinned:
            self._pinned = pinned
            if pins or self._contents.kept_bytes:
                self._go_by_pins(pins.namespaces)

    def _file_pins(self, filed: Sequence[PinRecord], wanted: tuple[PinRecord, ...]) -> None:
        """Have pins in the directory's file that says `filed`, and go by them. One that cannot be
        written counts in this process only."""
        refused = False
        if wanted != filed and not self._sharing.read_only:
            try:
                if write_pins(self.directory, wanted, self._names, self._fs):
                    filed = wanted
                    # Told of a file that stays as it is, the others would tell of it in turn.
                    self._tell(Repinned())
            except (OSError, ValueError) as error:
                refused = isinstance(error, OSError)
        self.pins.go_by(wanted, filed, again=refused)
        self._sharing.repinned = False
        self._files.count_small(PINS_FILE, pins_bytes(wanted))

    def _go_by(self, budget: Budget, own_limit: int | None) -> None:
        with self._lock:
            self.limit_bytes = budget.nbytes
            self._own_limit = own_limit
            self._refused_rank = None
        if not self._sharing.read_only:
            self._sharing.ledger.resize(ledger_bytes(budget.nbytes))
        self._files.count_small(LEDGER_FILE, self._sharing.ledger.nbytes)
        self._files.count_small(BUDGET_FILE, room_for(encode_budget(budget)))

    def _known_bytes(self) -> int:
        with self._lock:
            return self._used_bytes()

    def _used_bytes(self) -> int:
        held = self._contents.nbytes + self._flights.nbytes + self._doomed.nbytes
        return held + self._files.overhead_bytes

    def _note_peak(self) -> None:
        self._peak = max(self._peak, self._used_bytes())

    def write(self, page: Page, time_ns: int, document: Mapping[str, object]) -> WriteResult:
        """Publish a page whole or not at all, and say what was done.

        Evicts only pages that leave before this one: never its chain's root for its deep end.
        Raises OSError when the disk refuses, for want of room only after some were evicted, and
        ValueError for a payload of another size than the page's tensors; nothing is left behind
        then. A page that could not be read is written again, but one that only this process cannot
        decode; one that another process is writing is waited for a moment. Writer thread only.
        """
        self._load()
        candidate = Candidate(page.meta.id, page.meta.position, time_ns)
        decided = self._decided(candidate, page.meta.held)
        if decided is not None:
            return decided
        if self._encode is not None:
            page = self._encode(page)
        meta = page.meta
        size = memoryview(page.payload).nbytes
        if size != meta.nbytes:
            raise ValueError(f"a payload of {size} bytes for tensors of {meta.nbytes}")
        header = encode_header(meta, payload_checksum([page.payload]))
        rationed = _blocks(len(header) + size) if self._ration is not None else 0
        if self._ration is not None and not self._ration.take(rationed):
            return "rationed"
        result: WriteResult = "full"
        began = time.perf_counter()
        try:
            result = self._place(page, header, candidate, document)
            return result
        except OSError as error:
            with self._lock:
                self._health.fail_write(error)
            raise
        finally:
            if result == "written":
                self._timings.observe("page_write_seconds", time.perf_counter() - began)
            elif self._ration is not None:
                self._ration.give_back(rationed)

    def _decided(self, candidate: Candidate, held: int) -> WriteResult | None:
        """Return what `write` answers at once for a page that holds so many tokens, None when room
        must be made for it."""
        with self._lock:
            known = self._known(candidate.page, held)
            if known is not None:
                return known
            if self._refused_rank is not None and self._clock.now() >= self._refused_until_ns:
                self._refused_rank = None
            if self._refused_rank is not None and candidate.rank < self._refused_rank:
                self._refused += 1
                return "refused"
        if self._ration is not None and not self._ration.take(0):
            return "rationed"
        return None

    def _known(self, page: PageId, held: int) -> WriteResult | None:
        """Return what keeps a page from being written: its file is of use to others, or to this
        process, as far as is known; None for neither."""
        old = self._contents.file(page)
        if old is not None and old.undecodable:
            return "undecodable"
        has = old is not None and old.held >= held and not self._health.is_unreadable(page)
        return "present" if has else None

    def _place(
        self,
        page: Page,
        header: bytes,
        candidate: Candidate,
        document: Mapping[str, object],
    ) -> WriteResult:
        """Make room and publish; what was reserved and not published is given back."""
        meta, pieces = page.meta, [header, page.payload]
        size = len(header) + meta.nbytes
        wanted = StoredPage(meta.namespace, name_of(meta), size + FILE_SLACK_BYTES)
        path = self._path(wanted)
        temporary = self._names.new(os.path.dirname(path))
        writing = Writing(candidate, wanted, meta.parent, document, pieces, temporary, path)
        try:
            return self._place_in_turns(writing)
        finally:
            if writing.reserves:
                self._give_back(writing)

    def _place_in_turns(self, writing: Writing) -> WriteResult:
        """Make room and publish, in a few tries if the disk has no room after all."""
        wanted, candidate = writing.wanted, writing.candidate
        # A disk that eviction did not help the last time is not emptied for nothing.
        with self._lock:
            tries = 1 if self._health.refuses_writes else NO_ROOM_TRIES
        more, deadline, cleared = wanted.cost, time.monotonic() + ELSEWHERE_SECONDS, False
        while True:
            if not writing.reserves:
                self._deleter.retry()
            try:
                with self._changing():
                    self._heed_budget()
                    waits = self._is_elsewhere(wanted) and time.monotonic() < deadline
                    decided = None if waits else self._decided_exactly(writing)
                    if decided is not None:
                        return decided
                    if not waits:
                        self._stage(writing)
                if not waits:
                    return self._publish(writing)
            except HeldEnough:
                continue
            except LedgerBusy:
                # More was changed than could be followed; or somebody holds the directory, still.
                if not self.is_lost:
                    raise
                self._load()
                continue
            except OSError as error:
                if error.errno == errno.ENOENT and not cleared:
                    # Its namespace was cleared meanwhile, directory and all.
                    cleared = True
                    continue
                if error.errno not in NO_ROOM or not tries:
                    raise
                victims = self._give_way(more, candidate)
                if not victims.pages:
                    if victims.outranked:
                        return "refused"
                    raise
                more, tries = 2 * more, tries - 1
                continue
            time.sleep(_PAUSE_SECONDS)

    def _is_elsewhere(self, wanted: StoredPage) -> bool:
        """True while another process writes as much of a page; the directory is held."""
        flights = self._flights.elsewhere(wanted)
        self._sharing.recover(flights)
        return bool(flights) and bool(self._flights.elsewhere(wanted))

    def _decided_exactly(self, writing: Writing) -> WriteResult | None:
        """Return why a page is not written, None when there is room for it. The directory is held:
        what others have done by now is known. Raises HeldEnough."""
        wanted, candidate = writing.wanted, writing.candidate
        with self._lock:
            known = self._known(candidate.page, wanted.held)
            if known is not None:
                return known
        found = self._adopt(wanted, candidate)
        if found is not None:
            return found
        writing.described = self._files.document_bytes(wanted.namespace, writing.document)
        return self._make_room(wanted.cost, candidate, writing)

    def _places_of(self, writing: Writing) -> int:
        """Return what the directories and the document take that a page still needs."""
        shard = shard_of(writing.wanted.name.id.key)
        return self._files.places_bytes(writing.wanted.namespace, shard, writing.described)

    def _adopt(self, wanted: StoredPage, candidate: Candidate) -> WriteResult | None:
        """Index a page's file that nobody told of, as `open` would have, if there is room for it;
        None where there is none, or where this process knows of one."""
        name = wanted.name
        with self._lock:
            known = name.id in self._contents or name.id in self._leaving
            if known or self._health.is_unreadable(name.id):
                return None
        path = self._path(wanted)
        info = self._fs.own_file(path)
        if info is None or path in self._doomed:
            return None
        stored = wanted._replace(nbytes=physical_bytes(info))
        refusal = self._make_room(stored.cost, candidate)
        if refusal is not None:
            return refusal
        with self._lock:
            self._put(stored, candidate.stamp_ns, used=True)
            self._unrecorded.add(name.id)
            self._note_peak()
            self._events.note_file("stored", stored, "found")
        self._tell(Added("", stored, candidate.stamp_ns, 0))
        return "present"

    def _stage(self, writing: Writing) -> None:
        """Begin to write a page that there is room for; the directory is held."""
        with self._lock:
            writing.before = self._contents.file(writing.wanted.name.id)
        # First of all: of a writer that is killed others must know what to look for.
        self._reserve(writing, writing.wanted)
        size = sum(memoryview(piece).nbytes for piece in writing.pieces)
        writing.opened = self._files.stage(writing.temporary, size, writing.document)

    def _reserve(self, writing: Writing, page: StoredPage) -> None:
        """Count a page, as large as there is room for it now, in place of what was reserved before;
        the directory is held."""
        again: tuple[Change, ...] = (Cancelled(writing.file),) if writing.reserves else ()
        self._sharing.expect(page, writing.described)
        flight = Flight(
            writing.file, os.path.dirname(writing.path), page.namespace, page.nbytes, page, own=True
        )
        with self._lock:
            self._flights.end(writing.file)
            self._flights.begin(flight)
            writing.reserves = True
            self._note_peak()
        self._sharing.announce(*again, Reserved(writing.file, page, writing.described))

    def _reserve_part(self, writing: Writing) -> None:
        """Keep for a page what has become free so far: nobody else takes it before the rest is."""
        with self._lock:
            over = self._lacks(0)
        free = self._flights.cost_of(writing.file) - over - self._places_of(writing)
        if free > ENTRY_BYTES:
            nbytes = min(free - ENTRY_BYTES, writing.wanted.nbytes)
            self._reserve(writing, writing.wanted._replace(nbytes=nbytes))

    def _give_back(self, writing: Writing) -> None:
        """Delete what was written of a page that is not published, and give back what was reserved
        for it; raises nothing."""
        writing.reserves = False
        try:
            if writing.opened.fd < 0 or self._files.abandon(writing.temporary):
                with contextlib.suppress(OSError), self._changing():
                    self._sharing.tidy([os.path.dirname(writing.path)])
                    self._flights.end(writing.file)
                    self._tell(Cancelled(writing.file))
                    return
            # Whoever has the directory next finds out about it.
            self._flights.disown(writing.file)
        finally:
            writing.opened.close()

    def _publish(self, writing: Writing) -> WriteResult:
        """Write the file, name it and index it."""
        page, time_ns = writing.wanted.name.id, writing.candidate.stamp_ns
        try:
            nbytes = self._files.fill(writing.temporary, writing.pieces)
            with self._changing():
                with self._lock:
                    # Another process may have published as much of it meanwhile.
                    is_new = self._contents.file(page) not in (None, writing.before)
                    is_there = is_new and self._known(page, writing.wanted.held) == "present"
                if is_there:
                    self._give_back(writing)
                    return "present"
                self._files.publish(writing.temporary, writing.path, time_ns)
                stored = writing.wanted._replace(nbytes=nbytes)
                self._take(stored, time_ns, writing.file, writing.parent)
                writing.reserves = False
            self._files.sync(writing.path)
            if self._sharing.has_untold:
                # The directory was made anew meanwhile. Nobody else would find the page if this
                # process ended now, though `flush` has said that it is there.
                with contextlib.suppress(OSError):
                    self._load()
        except BaseException:
            if writing.reserves:
                self._give_back(writing)
            else:
                self.discard([page])
            raise
        finally:
            writing.opened.close()
        with self._lock:
            self._health.end_write()
        return "written"

    def _take(self, stored: StoredPage, time_ns: int, temporary: str, parent: BlockKey) -> None:
        """Index a page that was written under a temporary name, and tell of it; the directory is
        held."""
        page = stored.name.id
        again = self._once_written.find(page) is not None
        with self._lock:
            replaced = self._pop(page)
            self._flights.end(temporary)
            self._put(stored, time_ns, used=True).recorded_ns = time_ns
            self._leaving.discard(page)
            self._written += stored.nbytes
            self._rewritten += stored.nbytes if again or replaced is not None else 0
            self._note_peak()
            self._events.note_file("stored", stored, parent=parent)
        self._tell(Added(temporary, stored, time_ns, 0))
        if replaced is not None and replaced.name != stored.name:
            self._delete([replaced], "disk", held=True)

    def _give_way(self, nbytes: int, candidate: Candidate) -> Victims:
        """Evict about `nbytes`, one page at least if one may leave, for a candidate that the disk
        had no room for: of bytes, of files or of a quota."""
        with self._lock:
            most = min(nbytes, self._contents.nbytes)
            now, until = self._clock.now(), self._until(candidate)
            victims = self._contents.victims(most, candidate, now, until)
            evicted = self._evict(victims.pages)
            self._refused += victims.outranked and not victims.pages
        self._delete(evicted, "disk")
        return victims

    def _make_room(
        self, nbytes: int, candidate: Candidate, writing: Writing | None = None
    ) -> WriteResult | None:
        """Evict what must go for a file of `nbytes`, for one that is to be written with the
        directories that it needs; else a refusal. The directory is held, and what is freed is the
        caller's until then; for one that is written beyond that: raises HeldEnough for another call
        to go on."""
        short = None
        if writing is not None:
            nbytes += self._places_of(writing) - self._flights.cost_of(writing.file)
            short = writing.short
        # That it is enough is known by then.
        most = sys.maxsize if short is None else HOLD_FILES
        if self._own_limit is not None:
            with self._lock:
                used = self._used_bytes() + nbytes
                if used + DIRECTORY_SLACK_BYTES > self._own_limit:
                    # Others keep more here: theirs is not this process's to delete.
                    self._refused += 1
                    return "refused"
        # Once for a page: a disk that gives nothing back is not emptied for it.
        lacks = max(self._lacking(nbytes)) if short is None else short
        victims = self._victims(lambda: max(self._lacks(nbytes), lacks), candidate, most=most)
        if victims.outranked:
            with self._lock:
                # What others have reserved they may not need.
                lasting = self._lacks(nbytes) >= lacks and not self._flights.others()
                self._refuse(candidate, victims, lasting=lasting)
            return "refused"
        if victims.enough:
            if writing is None:
                self._expel(victims.pages, whole=True)
            else:
                writing.short = lacks
                self._expel_for(writing, victims)
        with self._lock:
            # What was evicted and could not be deleted is still there.
            if not victims.enough or self._lacks(nbytes) > 0:
                self._health.fill_up()
                return "full"
        return None

    def _victims(
        self,
        lacks: Callable[[], int],
        candidate: Candidate | None,
        most: int = sys.maxsize,
    ) -> Victims:
        """Choose what to evict for the bytes that are lacking, as far as their files know of no
        later use, those that leave in this hold of the directory at least; `most` as in
        `Contents.victims`."""
        ahead, asked = 1, set[PageId]()

        def catch_up(pages: list[PageId]) -> bool:
            # Each once: a time that has not come yet is always later than what is known.
            new = [page for page in pages if page not in asked]
            asked.update(new)
            return self._catch_up(new)

        while True:
            with self._lock:
                now = self._clock.now()
                until = sys.maxsize if candidate is None else self._until(candidate)
                victims = self._contents.victims(lacks(), candidate, now, until, most)
            if not catch_up(victims.pages[:HOLD_FILES]):
                return victims
            # Others used what comes next as well: a chain is used as a whole.
            ahead = min(2 * ahead, LOOKED_AHEAD)
            catch_up(self._first(ahead))

    def _expel(self, pages: list[PageId], *, whole: bool = False) -> list[StoredPage]:
        """Evict pages and delete their files, as many as one hold of the directory is for, or the
        `whole` of them; return them. The directory is held."""
        expelled: list[StoredPage] = []
        while pages and (count := len(pages) if whole else self._sharing.ledger.allow(len(pages))):
            with self._lock:
                evicted = self._evict(pages[:count])
            self._delete(evicted, "disk", held=True)
            expelled += evicted
            pages = pages[count:]
        return expelled

    def _expel_for(self, writing: Writing, victims: Victims) -> None:
        """Evict pages for one that is to be written; raises HeldEnough when more are to follow."""
        undeletable = self._doomed.nbytes
        expelled = self._expel(victims.pages)
        writing.short = (writing.short or 0) - sum(stored.cost for stored in expelled)
        is_part = len(expelled) < len(victims.pages) or len(expelled) == HOLD_FILES
        if is_part and self._doomed.nbytes <= undeletable:
            self._reserve_part(writing)
            raise HeldEnough

    def _lacks(self, nbytes: int) -> int:
        """Return by how much the budget is exceeded with `nbytes` more."""
        return self._used_bytes() + nbytes + DIRECTORY_SLACK_BYTES - self.limit_bytes

    def _refuse(self, candidate: Candidate, victims: Victims, *, lasting: bool) -> None:
        """Count a page that others outrank, and remember its rank: of those that are worth less
        none is asked for."""
        self._refused += 1
        # Free space comes and goes without this tier; its own budget does not.
        self._refused_rank = candidate.rank if lasting else None
        # What was too young to leave grows old.
        patience_ns, young_ns = self._contents.policy.patience_ns, victims.young_ns
        self._refused_until_ns = young_ns + patience_ns if young_ns else sys.maxsize
        self._contents.policy.wanted([candidate.page], candidate.stamp_ns)
        self._contents.policy.refused([candidate.page], candidate.stamp_ns)

    def _first(self, count: int) -> list[PageId]:
        """Return the pages that would leave first."""
        with self._lock:
            return self._contents.first(count)

    @contextlib.contextmanager
    def impatient(self) -> Iterator[None]:
        """Let pages push out what was used a short while ago, for as long as the block lasts."""
        with self._lock:
            self._impatient += 1
            self._refused_rank = None
        try:
            yield
        finally:
            with self._lock:
                self._impatient -= 1

    def _until(self, candidate: Candidate) -> int:
        """Return the last stamp of pages that a candidate may push out."""
        if self._impatient:
            return sys.maxsize
        return max(self._clock.now(), candidate.stamp_ns) - self._contents.policy.patience_ns

    def _lacking(self, nbytes: int) -> tuple[int, int]:
        """Return how many bytes the disk lacks to keep its free space beside `nbytes` more, and 1
        if it lacks files; raises OSError for one mounted read-only, where nothing can leave."""
        directory = self.directory
        try:
            short = self._min_free + nbytes - self._fs.free_bytes(directory)
            spare = self._fs.spare_files(directory) if self._min_free else None
            read_only = self._fs.is_read_only(directory)
        except OSError:
            return 0, 0
        if read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(directory))
        return short, int(spare is not None and spare < 1)

    def _evict(self, pages: Iterable[PageId]) -> list[StoredPage]:
        evicted = self._drop(pages, "disk")
        self._evicted += len(evicted)
        self._once_written.note((stored.name.id for stored in evicted), "disk")
        return evicted

    def settle(self) -> None:
        """Record recency on the disk and evict down to the budget; notice a directory that was
        removed or replaced, a budget that was changed and writers that are gone. Writer thread
        only; raises nothing."""
        try:
            self._look_around()
        except LedgerBusy:
            if not self.is_lost:
                return
            # More was changed than could be followed.
            with contextlib.suppress(OSError):
                self._look_around()
        except OSError:
            return
        self._shrink()

    def _look_around(self) -> None:
        self._load()
        self._record_recency()
        with self._changing():
            self._heed_budget()
            self._sharing.recover()

    def _shrink(self) -> None:
        """Evict down to the budget, a part at a time; raises nothing."""
        self._deleter.retry()
        while self._known_bytes() > self.limit_bytes:
            try:
                with self._changing():
                    self._heed_budget()
                    evicted = self._shrink_a_part()
            except OSError:
                return
            if not evicted:
                return

    def _shrink_a_part(self) -> int:
        """Evict some of what is too much; return how many pages. The directory is held."""
        over = partial(self._lacks, -DIRECTORY_SLACK_BYTES)
        victims = self._victims(over, None, most=HOLD_FILES)
        pages = victims.pages if victims.enough else self._first(HOLD_FILES)
        return len(self._expel(pages))

    def usage(self) -> ColdUsage:
        day = None if self._ration is None else self._ration.usage()
        with self._lock:
            self._note_peak()
            return ColdUsage(
                pages=len(self._contents),
                nbytes=self._used_bytes(),
                peak_bytes=self._peak,
                limit_bytes=self.limit_bytes,
                evicted_pages=self._evicted,
                refused_pages=self._refused,
                corrupt_pages=self._corrupt,
                undecodable_pages=self._contents.undecodable,
                ignored_files=self._ignored,
                state=self._health.state,
                written_bytes=self._written,
                rewritten_bytes=self._rewritten,
                rationed_pages=0 if day is None else day.rationed_pages,
                day_written_bytes=0 if day is None else day.written_bytes,
                day_limit_bytes=0 if day is None else day.limit_bytes,
                patience_seconds=self._contents.policy.patience_ns / 1e9,
            )

    @property
    def refuses_writes(self) -> bool:
        """True from a failed write until the next one that succeeds."""
        with self._lock:
            return self._health.refuses_writes

    def check_integrity(self) -> None:
        """Assert that the byte counts, the index and the order agree, when no write is running."""
        self._doomed.check_integrity()
        with self._lock:
            assert not any(flight.own for flight in self._flights.all())
            self._contents.check_integrity()
            assert self._used_bytes() <= self.limit_bytes


def _blocks(nbytes: int) -> int:
    """Return what a file takes of a disk, as far as can be told before it is written."""
    return -(-nbytes // SMALL_FILE_BYTES) * SMALL_FILE_BYTES
