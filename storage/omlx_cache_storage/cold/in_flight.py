"""Pages that are being written to a directory, by this process and by others."""

import threading
import time
from typing import NamedTuple

from omlx_cache_storage.format.names import ENTRY_BYTES, StoredPage
from omlx_cache_storage.keys import BlockKey


class Flight(NamedTuple):
    """A page that is being written under a temporary name, into a shard's directory.

    `page` is None where only the file was seen. `own`: by this object, which ends what it began;
    `since`: when it was found to be under way, by the monotonic clock.
    """

    temporary: str
    directory: str
    namespace: BlockKey
    nbytes: int
    page: StoredPage | None
    own: bool
    since: float

    @property
    def cost(self) -> int:
        """What it takes of the budget."""
        return self.nbytes + ENTRY_BYTES


class InFlight:
    """Counts what is reserved for pages under way, by temporary name: nobody gives one twice. Any
    thread may call. `_lock` guards `nbytes` and `_flights`; it is held over no other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.nbytes = 0
        self._flights: dict[str, Flight] = {}

    def begin(
        self,
        temporary: str,
        directory: str,
        namespace: BlockKey,
        nbytes: int,
        page: StoredPage | None = None,
        *,
        own: bool = False,
    ) -> None:
        """Count a page, unless it is counted."""
        now = time.monotonic()
        flight = Flight(temporary, directory, namespace, nbytes, page, own, now)
        with self._lock:
            if self._flights.setdefault(temporary, flight) is flight:
                self.nbytes += flight.cost

    def end(self, temporary: str) -> None:
        """Forget what was begun, if it was."""
        with self._lock:
            flight = self._flights.pop(temporary, None)
            self.nbytes -= 0 if flight is None else flight.cost

    def cost_of(self, temporary: str) -> int:
        """Return what is reserved under a temporary name, 0 for nothing."""
        with self._lock:
            flight = self._flights.get(temporary)
            return 0 if flight is None else flight.cost

    def disown(self, temporary: str) -> None:
        """Leave it to anybody to find out, at once, what became of a page."""
        self._change(temporary, own=False, since=0.0)

    def looked_at(self, temporary: str) -> None:
        """Note that a page is still being written."""
        self._change(temporary, since=time.monotonic())

    def _change(self, temporary: str, **fields: object) -> None:
        with self._lock:
            flight = self._flights.get(temporary)
            if flight is not None:
                self._flights[temporary] = flight._replace(**fields)  # type: ignore[arg-type]

    def all(self) -> list[Flight]:
        """Return what is being written."""
        with self._lock:
            return list(self._flights.values())

    def others(self) -> list[Flight]:
        """Return what others write."""
        return [flight for flight in self.all() if not flight.own]

    def elsewhere(self, page: StoredPage) -> list[Flight]:
        """Return the flights of others that hold as much of a page."""
        return [
            flight
            for flight in self.others()
            if flight.page is not None
            and flight.page.name.id == page.name.id
            and flight.page.held >= page.held
        ]

    def clear(self) -> None:
        """Forget what others began."""
        for flight in self.others():
            self.end(flight.temporary)
