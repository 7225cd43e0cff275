"""The limits that all processes of a directory share: its budget, its pins, and a day's writes.

A budget that a person set with `omlx-cache quota` stays until that command changes it. Stores may
change a budget that a store set. Written bytes are booked in `writes.json` before, a thousandth of
a day's at a time: a killed process has booked too much, by that at most, and never too little.
"""

import contextlib
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from omlx_cache_storage.breaker import NO_ROOM
from omlx_cache_storage.cold.disk import Durability, FileSystem, replace_file
from omlx_cache_storage.cold.eviction import Evictor
from omlx_cache_storage.cold.files import PageFiles
from omlx_cache_storage.cold.index import Index
from omlx_cache_storage.cold.ledger import Ledger, ledger_bytes
from omlx_cache_storage.cold.ledger_records import Rebudgeted, Repinned
from omlx_cache_storage.cold.sharing import DirectoryPart, Sharing
from omlx_cache_storage.cold.small_files import (
    WORDS,
    Budget,
    encode_budget,
    is_count,
    pins_bytes,
    read_budget,
    read_document,
    read_pins,
    room_for,
    write_budget,
    write_pins,
)
from omlx_cache_storage.documents import format_size
from omlx_cache_storage.eviction.keep import Clock
from omlx_cache_storage.format.names import BUDGET_FILE, LEDGER_FILE, PINS_FILE, WRITES_FILE

_log = logging.getLogger(__name__)

HOURS = 24
_HOUR_NS = 3600 * 1_000_000_000
BOOKED_SHARE = 1024
_MOST_BYTES = 2**62
LOCK_SECONDS = 0.2
"""How long to wait for other processes that book: a page is written all the same."""


FAR_LESS = 10
"""A budget of less than this part of what a process would derive is likely to be an oversight."""
CROWDED: Final = (
    "others fill the disk: by its free space the budget is {}, which the stored pages take, so a "
    "new page evicts an old one; free room on the disk, then `omlx-cache quota auto`"
)
IGNORED_SHARES: Final = (
    f"{BUDGET_FILE} has shares that an earlier version set, and they do not count any more: give a "
    "tenant, model or namespace a cold_dir of its own; `omlx-cache quota SIZE` takes them out"
)


class DailyWrites:
    """Admits bytes to write, `limit_bytes` in any 24 hours of the clock, the running one included.
    With 0 there is no limit: nobody asks.

    A rejection closes the day until the next hour: smaller pages would go to the disk without the
    pages before them. `_booked` are bytes that are booked and not written, `_closed` is the closed
    hour, and `_hours` is replaced as a whole. Any thread may ask for properties and
    `rationed_pages`; the methods belong to one thread at a time.
    """

    def __init__(
        self,
        directory: Path,
        ledger: Ledger,
        limit_bytes: int,
        fs: FileSystem,
        clock: Clock,
        durability: Durability = "none",
    ) -> None:
        self._path = os.path.join(directory, WRITES_FILE)
        self._ledger = ledger
        self.limit_bytes = limit_bytes
        self._fs = fs
        self._clock = clock
        self._durability: Durability = durability
        self._hours: dict[int, int] = {}
        self._booked = 0
        self._closed = -1
        self.rationed_pages = 0
        self._told = False

    def take(self, nbytes: int) -> bool:
        """Admit bytes for a page; False, counted and said once, beyond the limit. Of none: whether
        any may be admitted."""
        if not self._fits(nbytes) or (nbytes > self._booked and not self._book(nbytes)):
            self._closed = self._hour()
            self.rationed_pages += 1
            if not self._told:
                _log.warning(
                    "daily_write_bytes (%s) is spent: pages stay in memory only, until what was "
                    "written a day ago no longer counts",
                    format_size(self.limit_bytes),
                )
            self._told = True
            return False
        self._booked -= nbytes
        self._told = self._told and not nbytes
        return True

    def give_back(self, nbytes: int) -> None:
        self._booked += nbytes

    @property
    def written_bytes(self) -> int:
        return max(0, self._total(self._hour()) - self._booked)

    @property
    def is_spent(self) -> bool:
        return self._closed == self._hour()

    def _hour(self) -> int:
        return self._clock.now() // _HOUR_NS

    def _total(self, hour: int) -> int:
        return sum(nbytes for at, nbytes in self._hours.items() if at > hour - HOURS)

    def _fits(self, nbytes: int) -> bool:
        hour = self._hour()
        return (
            hour != self._closed and self._total(hour) - self._booked + nbytes <= self.limit_bytes
        )

    def _book(self, nbytes: int) -> bool:
        """Book a page's bytes, and somewhat more; False when peer processes have booked them. A
        disk that refuses the file does not stop the count: it goes on in memory."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                stack.enter_context(self._ledger.held(LOCK_SECONDS))
            self.read()
            if not self._fits(nbytes):
                return False
            hour = self._hour()
            wanted = max(nbytes - self._booked, self.limit_bytes // BOOKED_SHARE)
            booked = min(wanted, self.limit_bytes - self._total(hour))
            self._hours = {**self._hours, hour: self._hours.get(hour, 0) + booked}
            self._booked += booked
            raw = json.dumps({"hours": self._hours}, indent=2).encode() + b"\n"
            with contextlib.suppress(OSError):
                replace_file(self._path, raw, self._fs, self._durability)
        return True

    def read(self) -> None:
        """Take the file's counts where they are higher: nothing is ever unbooked. Raises
        nothing."""
        now, known = self._hour(), self._hours
        filed = _parse(read_document(self._path, self._fs), now)
        self._hours = {
            hour: max(known.get(hour, 0), filed[hour])
            for hour in {**known, **filed}
            if hour > now - HOURS
        }


def _parse(document: Mapping[str, object], now: int) -> Counter[int]:
    """Return the bytes of each hour of a file; hours that are yet to come count as the running one:
    the clock was set back."""
    found: Counter[int] = Counter()
    hours = document.get("hours")
    for name, nbytes in hours.items() if isinstance(hours, dict) else ():
        if is_count(nbytes, _MOST_BYTES) and name.isdecimal() and len(name) < 12:
            found[min(int(name), now)] += nbytes
    return found


class Agreement(NamedTuple):
    """The budget that a store follows when it opens a directory.

    `write`: the directory's file must say `budget` from now on. `note`: one line for a person whose
    setting differs, or "". A store whose own setting is less than `budget` stops writing at its
    setting, and deletes nothing for it.
    """

    budget: Budget
    write: bool
    note: str


def agree(
    known: Budget | None, wanted_bytes: int, *, derived: bool, alone: bool, used_bytes: int
) -> Agreement:
    """Return the budget that counts when a store that wants so much opens; decides only.

    `known`: what the directory's file says; `derived`: `wanted_bytes` comes from free space, no
    person chose it; `alone`: no other process uses the directory, which holds `used_bytes`. Beside
    peer processes, no budget is returned that would make them evict pages.
    """
    # Peer processes may have a budget that no file says: it is at least the bytes in use.
    before = known or Budget(used_bytes, "free space")
    if derived:
        is_ours = known is None or (alone and known.set_by == "free space")
        wanted = replace(before, nbytes=wanted_bytes if alone else max(wanted_bytes, used_bytes))
    else:
        is_free = before.set_by == "free space" or (alone and before.set_by == "store")
        is_ours = is_free and (alone or used_bytes <= wanted_bytes)
        wanted = replace(before, nbytes=wanted_bytes, set_by="store")
    budget = wanted if is_ours else before
    is_far_less = budget.set_by != "free space" and budget.nbytes < wanted_bytes // FAR_LESS
    is_told = is_far_less if derived else budget.nbytes != wanted_bytes
    note = _note(budget, wanted_bytes, derived=derived) if is_told else ""
    if derived and budget.set_by == "free space" and budget.nbytes <= used_bytes:
        note = CROWDED.format(format_size(budget.nbytes))
    return Agreement(budget, is_ours and budget != known, note)


def _note(budget: Budget, wanted_bytes: int, *, derived: bool) -> str:
    limit = (
        f"the directory's budget is {format_size(budget.nbytes)} for all processes, set by "
        f"{WORDS[budget.set_by]}"
    )
    if derived:
        return (
            f"{limit}; with `omlx-cache quota auto` it follows the free space: "
            f"{format_size(wanted_bytes)}"
        )
    does = (
        "writes only while the directory holds less: restart it with more cold_bytes"
        if wanted_bytes < budget.nbytes
        else "goes by the budget, which `omlx-cache quota` changes"
    )
    return f"{limit}; this process was told {format_size(wanted_bytes)} and {does}"


class SharedLimits(DirectoryPart):
    """Agrees with peer processes on a budget, and follows it and the pins. Belongs to the thread
    that holds the directory.

    `wanted` is this process's own setting. `derived`: it comes from free space; `budget_of`
    computes it from the bytes found.
    """

    def __init__(
        self,
        index: Index,
        files: PageFiles,
        sharing: Sharing,
        evictor: Evictor,
        *,
        derived: bool,
    ) -> None:
        super().__init__(index, files, sharing)
        self._evictor = evictor
        self.wanted = index.limit_bytes
        self.derived = derived
        self.budget_of: Callable[[int], int] | None = None
        self._pinned = (0, self.wanted)
        self._noted = ""
        self._waited = False

    def agree(self) -> None:
        used = self._evictor.known_bytes()
        if self.budget_of is not None:
            self.wanted = self.budget_of(used)
        known = read_budget(self._index.directory, self._fs)
        agreed = agree(
            known,
            self.wanted,
            derived=self.derived,
            alone=self.may_replace(known),
            used_bytes=used,
        )
        self._waited = self._evictor.waits
        if self._waited:
            agreed = agreed._replace(
                budget=replace(agreed.budget, nbytes=max(used, agreed.budget.nbytes)), write=False
            )
        if agreed.write and not self._sharing.read_only:
            self._note_change((known or agreed.budget).nbytes, agreed.budget)
            try:
                write_budget(self._index.directory, agreed.budget, self._fs)
                self._sharing.tell(Rebudgeted())
            except OSError as error:
                # A full disk serves its pages, and makes room: the next process writes the budget.
                if error.errno not in NO_ROOM:
                    raise
        note = "; ".join(
            filter(None, [agreed.note, IGNORED_SHARES if agreed.budget.shares else ""])
        )
        if note and note != self._noted:
            _log.warning("%s", note)
        self._noted = note
        self._go_by(agreed.budget)

    def may_replace(self, known: Budget | None) -> bool:
        """True when a budget that a store set is this one's to change; the directory is held."""
        return self._sharing.is_alone()

    def heed(self, *, anew: bool = False) -> None:
        """Go by the directory's budget and its pins if they were changed, if a pin has ended, or
        `anew`; agree on a budget if it was left to the stores. The directory is held, or cannot be
        changed. A disk that refuses leaves pins as they are; else raises OSError."""
        anew = anew or (self._waited and not self._evictor.waits)
        if self._sharing.rebudgeted and not anew:
            budget = read_budget(self._index.directory, self._fs)
            if budget is not None and budget.set_by == "free space":
                anew = True
            elif budget is not None:
                self._note_change(self._index.limit_bytes, budget)
                self._go_by(budget)
        if anew:
            self.agree()
        self._sharing.rebudgeted = False
        pins, now = self._index.pins, self._index.clock.now()
        changed = anew or pins.is_unwritten or self._sharing.repinned
        with contextlib.suppress(OSError):
            if changed or (pins.version and pins.end_ns <= now):
                self._file_pins(now)
            if pins.version:
                with self._index.lock:
                    here = list(+self._index.namespaces)
                pins.learn(here)
            pinned = (pins.version, self._index.limit_bytes)
            if anew or self._pinned != pinned:
                self._pinned = pinned
                if pins.version or self._index.contents.pinned_bytes:
                    self._index.go_by_pins(pins.namespaces)

    def _note_change(self, before: int, budget: Budget) -> None:
        """Log a budget that somebody has changed, and whether the disk can give it."""
        if budget.nbytes != before and budget.set_by != "free space":
            used, free = self._evictor.known_bytes(), self._fs.free_bytes(self._index.directory)
            is_more = budget.nbytes > used + free
            _log.log(
                logging.WARNING if is_more or budget.nbytes < used else logging.INFO,
                "the budget of %s was %s and is %s for all processes, set by %s%s",
                *(self._index.directory, format_size(before), format_size(budget.nbytes)),
                WORDS[budget.set_by],
                f"; the disk is full before: {format_size(free)} are free" * is_more,
            )

    def _file_pins(self, now_ns: int) -> None:
        """Have pins in the directory's file, and go by them. One that cannot be written counts in
        this process only. Raises OSError for a file that cannot be read."""
        filed, refused = read_pins(self._index.directory, self._fs), False
        wanted = self._index.pins.merged(filed, now_ns)
        if wanted != filed and not self._sharing.read_only:
            try:
                if write_pins(self._index.directory, wanted, self._fs):
                    filed = wanted
                    # Told of a file that stays as it is, the others would tell of it in turn.
                    self._sharing.tell(Repinned())
            except (OSError, ValueError) as error:
                refused = isinstance(error, OSError)
        self._index.pins.go_by(wanted, filed, again=refused)
        self._sharing.repinned = False
        self._files.count_small(PINS_FILE, pins_bytes(wanted))

    def _go_by(self, budget: Budget) -> None:
        # A setting that is derived from free space limits no process.
        limits = not self.derived and self.wanted < budget.nbytes
        with self._index.lock:
            self._index.limit_bytes = budget.nbytes
            self._evictor.own_limit = self.wanted if limits else None
            self._index.refused_rank = None
        if not self._sharing.read_only:
            self._sharing.ledger.resize(ledger_bytes(budget.nbytes))
        self._files.count_small(LEDGER_FILE, self._sharing.ledger.nbytes)
        self._files.count_small(BUDGET_FILE, room_for(encode_budget(budget)))
