"""Reading a cold directory into the index."""

import contextlib
import errno
import logging
import os
import time

from omlx_cache_storage.breaker import NO_ROOM, UNAVAILABLE, Health
from omlx_cache_storage.cold.catalog import Inventory, take_inventory, uncollected
from omlx_cache_storage.cold.eviction import AHEAD_NS, FILE_SLACK_BYTES, Evictor
from omlx_cache_storage.cold.files import PageFiles
from omlx_cache_storage.cold.index import Contents, Index
from omlx_cache_storage.cold.ledger import (
    HOLD_FILES,
    SMALLEST_BYTES,
    WAIT_SECONDS,
    LedgerBusy,
    ledger_bytes,
)
from omlx_cache_storage.cold.root import DirectoryGone, DiskGone, Root
from omlx_cache_storage.cold.shared_limits import SharedLimits
from omlx_cache_storage.cold.sharing import DirectoryPart, Sharing
from omlx_cache_storage.format.names import LEDGER_FILE, PageName, parse_name

_log = logging.getLogger(__name__)

SCANS = 3
"""How often a directory is read that changes faster than it is followed, before the tier backs
off."""
SCAN_SECONDS = WAIT_SECONDS / 4


class Opening(DirectoryPart):
    """Has the directory in the index, whether it was there before or comes again. Belongs to one
    thread at a time; the index's lock guards `ignored`, the files that are not this user's."""

    def __init__(
        self,
        index: Index,
        files: PageFiles,
        sharing: Sharing,
        evictor: Evictor,
        limits: SharedLimits,
        root: Root,
    ) -> None:
        super().__init__(index, files, sharing)
        self._evictor = evictor
        self._limits = limits
        self.root = root
        self.ignored = 0

    def load(self) -> None:
        """Index the directory anew; raises OSError."""
        before = self._index.health.opening
        try:
            self._read_anew()
        except OSError as error:
            # What changes until it can be read is not known.
            self._sharing.is_lost = True
            with self._index.lock:
                if isinstance(error, DirectoryGone):
                    # The pages in memory are written nowhere, then.
                    self._index.know(
                        Contents(self._index.make_policy(self._index.contents.policy.learned()))
                    )
                self._index.health.fail_open(error)
            if isinstance(error, DiskGone):
                # An open file would keep its file system in use.
                self._sharing.close()
            told = self._index.health.opening
            if told != before:
                _log.warning("no cold tier: %s", told.removeprefix(UNAVAILABLE))
            raise
        if before.startswith(UNAVAILABLE):
            _log.warning("the cold tier is there again: %s", self._index.directory)

    @uncollected()
    def _read_anew(self) -> None:
        # A directory that changed too fast to be followed loses no recency.
        self._evictor.record_recency()
        self.root.have(deleted=self._sharing.ledger.is_gone)
        if self._sharing.ledger.is_gone and not self._files.is_ours():
            _log.warning(
                "%s was deleted and made again: its pages, its quota and its pins are gone",
                self._index.directory,
            )
        self._files.open()
        try:
            self._sharing.enter(ledger_bytes(self._index.limit_bytes))
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self._make_way()
            self._sharing.enter(ledger_bytes(self._index.limit_bytes))
        self.root.remember(self._sharing.ledger.identity)
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
                    contents, found = self.read_directory()
                    took = time.monotonic() - began
                    self._go_on_from(contents, found)
                return
            except LedgerBusy:
                if not self._sharing.fell_behind or not tries_left:
                    raise
                self._sharing.ledger.skip()

    def _clear_first(self) -> None:
        with self._index.lock:
            cleared, self._index.cleared = self._index.cleared, set()
        for namespace in cleared:
            with contextlib.suppress(OSError):
                self._files.set_aside(namespace)
        self._files.remove_cleared()

    def _go_on_from(self, contents: Contents, found: Inventory) -> None:
        """Index the pages that were read, and take in the changes of peer processes meanwhile;
        raises OSError, LedgerBusy when those are too many."""
        self._begin_with(contents, found)
        if self._sharing.read_only:
            self._limits.heed(anew=True)
            why = self._sharing.refusal()
            _log.warning(
                "%s: %s: pages that are there are restored, and none is written until that changes",
                *(why.filename, why.strerror),
            )
            return
        for start in range(0, len(found.useless), HOLD_FILES):
            with self._sharing.changing():
                for path in found.useless[start:][:HOLD_FILES]:
                    # It may have been published by now.
                    name = parse_name(os.path.basename(path))
                    if name is None or not self._index.is_indexed(name):
                        with contextlib.suppress(OSError):
                            self._fs.remove(path)
        with self._sharing.changing():
            self._sharing.tell(*self._files.clear_up(found))
            self._limits.heed(anew=True)

    def _make_way(self) -> None:
        """Delete the first pages in the order, for a ledger that the disk has no room for; raises
        OSError. No peer process need be told: without a ledger, none follows it."""
        contents, _ = self.read_directory()
        victims = contents.victims(min(2 * SMALLEST_BYTES, contents.nbytes)).pages
        for file in filter(None, map(contents.get, victims)):
            self._fs.remove(self._index.path(file.stored))
        with self._index.lock:
            self._evictor.evicted += len(victims)
            self._index.departures.note(victims, "disk")

    def read_directory(self) -> tuple[Contents, Inventory]:
        now = time.time_ns()
        inventory = take_inventory(self._index.directory, self._fs)
        ahead = {page.name.id for page, at_ns in inventory.pages if at_ns > now + AHEAD_NS}
        with self._index.lock:
            self._index.unrecorded |= ahead
            learned = self._index.contents.policy.learned()
        contents = Contents(self._index.make_policy(learned))
        inventory.useless.extend(
            map(
                self._index.path,
                contents.fill((page, min(at_ns, now)) for page, at_ns in inventory.pages),
            )
        )
        inventory.pages.clear()
        return contents, inventory

    def _begin_with(self, contents: Contents, found: Inventory) -> None:
        with self._sharing.beginning(found.under_way, FILE_SLACK_BYTES), self._index.lock:
            if self._index.cleared:
                raise LedgerBusy(errno.EAGAIN, "a namespace was cleared while it was read")
            self._index.know(contents)
            doomed = list(self._index.doomed.values())
            self._index.doomed.end(*(file.name for file in doomed))
            for file in doomed:
                # A page that was deleted on request or damaged, and whose file still exists.
                if (
                    file.page is not None
                    and file.why != "disk"
                    and isinstance(file.name, PageName)
                    and self._index.has_file(file.name)
                ):
                    self._index.pop(file.page.name.id)
                    self._index.doomed.count(file.name, file)
            self._index.health = Health()
            self.ignored = len(found.ignored)
            self._index.events.note_tier(
                "resynced", "cold", detail=f"read, with {len(contents)} pages"
            )
        # Without files that were in flight before: they may have been published since.
        with self._index.lock:
            self._evictor.peak = max(self._evictor.peak, self._evictor.used_bytes())
