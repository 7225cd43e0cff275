"""What a store goes by in a directory: its budget and its pins, one for all processes."""

import logging
from collections.abc import Callable, Sequence

from omlx_cache_storage.cold.budget import IGNORED_SHARES, Budget, agree, own_limit
from omlx_cache_storage.cold.changes import Rebudgeted, Repinned
from omlx_cache_storage.cold.files import PageFiles
from omlx_cache_storage.cold.health import NO_ROOM
from omlx_cache_storage.cold.index import Index
from omlx_cache_storage.cold.ledger import ledger_bytes
from omlx_cache_storage.cold.room import Room
from omlx_cache_storage.cold.sharing import Sharing
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
from omlx_cache_storage.format.names import BUDGET_FILE, LEDGER_FILE, PINS_FILE
from omlx_cache_storage.hints import PinRecord

_log = logging.getLogger(__name__)


class Terms:
    """Agrees with other processes on a budget, and follows it and the pins. Belongs to who holds
    the directory.

    `wanted` is what this process was told, `derived` whether that comes from free space, which
    `budget_of` makes of the bytes found.
    """

    def __init__(
        self,
        index: Index,
        files: PageFiles,
        sharing: Sharing,
        room: Room,
        *,
        derived: bool,
    ) -> None:
        self._index = index
        self._files = files
        self._fs = files.fs
        self._sharing = sharing
        self._room = room
        self._names = TemporaryNames()
        self.wanted = index.limit_bytes
        self.derived = derived
        self.budget_of: Callable[[int], int] | None = None
        self._pinned = (0, self.wanted)
        self._noted = ""

    def agree(self) -> None:
        """Agree with other processes on a budget; the directory is held, or cannot be changed."""
        used = self._room.known_bytes()
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
        if agreed.write and not self._sharing.read_only:
            try:
                write_budget(self._index.directory, agreed.budget, self._names, self._fs)
                self._sharing.tell(Rebudgeted())
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
        self.heed_pins(anew=True)

    def may_replace(self, known: Budget | None) -> bool:
        """True when a budget that a store set is this one's to change; the directory is held."""
        return self._sharing.is_alone()

    def heed(self) -> None:
        """Go by the directory's budget if it was changed; the directory is held."""
        if self._sharing.rebudgeted:
            budget = read_budget(self._index.directory, self._fs)
            if budget is not None:
                self._go_by(budget, own_limit(budget, self.wanted, derived=self.derived))
            self._sharing.rebudgeted = False
        self.heed_pins()

    def heed_pins(self, *, anew: bool = False) -> None:
        """Go by the directory's pins if they were changed, here or elsewhere, if one has ended, or
        `anew`; the directory is held, or cannot be changed. A disk that refuses leaves things as
        they are."""
        pins, now = self._index.pins, self._index.clock.now()
        changed = anew or pins.is_unwritten or self._sharing.repinned
        try:
            if changed or (pins and pins.end_ns <= now):
                filed = read_pins(self._index.directory, self._fs)
                wanted = pins.merged(filed, now)
                self._file_pins(filed, wanted)
            if pins:
                with self._index.lock:
                    here = [name for name, taken in self._index.contents.taken.items() if taken]
                pins.learn(here)
        except OSError:
            return
        pinned = (pins.version, self._index.limit_bytes)
        if anew or self._pinned != pinned:
            self._pinned = pinned
            if pins or self._index.contents.kept_bytes:
                self._index.go_by_pins(pins.namespaces)

    def _file_pins(self, filed: Sequence[PinRecord], wanted: tuple[PinRecord, ...]) -> None:
        """Have pins in the directory's file that says `filed`, and go by them. One that cannot be
        written counts in this process only."""
        refused = False
        if wanted != filed and not self._sharing.read_only:
            try:
                if write_pins(self._index.directory, wanted, self._names, self._fs):
                    filed = wanted
                    # Told of a file that stays as it is, the others would tell of it in turn.
                    self._sharing.tell(Repinned())
            except (OSError, ValueError) as error:
                refused = isinstance(error, OSError)
        self._index.pins.go_by(wanted, filed, again=refused)
        self._sharing.repinned = False
        self._files.count_small(PINS_FILE, pins_bytes(wanted))

    def _go_by(self, budget: Budget, own_limit: int | None) -> None:
        with self._index.lock:
            self._index.limit_bytes = budget.nbytes
            self._room.own_limit = own_limit
            self._index.refused_rank = None
        if not self._sharing.read_only:
            self._sharing.ledger.resize(ledger_bytes(budget.nbytes))
        self._files.count_small(LEDGER_FILE, self._sharing.ledger.nbytes)
        self._files.count_small(BUDGET_FILE, room_for(encode_budget(budget)))
