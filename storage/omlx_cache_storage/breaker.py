"""Backing off from what fails: a circuit breaker, and the cold tier's failed reads and writes with
the state that it reports."""

import errno
import threading
import time
from collections import OrderedDict

from omlx_cache_storage.page import PageId

FAILURES = 3
"""Failures in a row that are taken for bad luck."""
FIRST_SECONDS = 1.0
LONGEST_SECONDS = 60.0
"""How long one backs off: the first time, and at most. Doubles with each failed try."""


class CircuitBreaker:
    """Says whether a resource may be used. Not thread-safe: its owner's lock guards it.

    A thread that gets True from `enter` reports with `succeeded`, `failed` or, when it found out
    neither, `left`. After `most` failures in a row no thread enters for the first of `bounds`; the
    pause doubles each time, up to the second. Then one thread at a time enters until one succeeds:
    `_trying`, 0 without one. Reports of threads that entered before end no try. `tripped` is true
    from the last of these failures until a success.
    """

    __slots__ = ("_bounds", "_failures", "_most", "_seconds", "_trying", "_until", "tripped")

    def __init__(self, most: int = FAILURES, bounds: tuple[float, float] | None = None) -> None:
        self._most = most
        self._bounds = bounds
        self._failures = 0
        self._seconds = self._until = 0.0
        self._trying = 0
        self.tripped = False

    @property
    def is_open(self) -> bool:
        return self.tripped and (self._trying != 0 or now() < self._until)

    def enter(self) -> bool:
        may = not self.is_open
        if may and self.tripped:
            self._trying = threading.get_ident()
        return may

    def succeeded(self, *, sure: bool = True) -> None:
        """Let every thread enter again. A success that is not `sure` leaves the next pause as
        long."""
        self._failures = self._trying = 0
        self.tripped = False
        if sure:
            self._seconds = 0.0

    def failed(self) -> None:
        self.left()
        self._failures += 1
        self.tripped = self._failures >= self._most
        if self.tripped:
            first, longest = self._bounds or (FIRST_SECONDS, LONGEST_SECONDS)
            self._seconds = min(2 * self._seconds or first, longest)
            self._until = now() + self._seconds

    def left(self) -> None:
        if self._trying == threading.get_ident():
            self._trying = 0

    def ask_again(self) -> None:
        self._until = 0.0


now = time.monotonic


PAGE_BOUNDS = (30.0, 3600.0)
"""Seconds of backing off from an unreadable page: longer than computing it again takes, so that the
commit that follows still finds it absent."""
REMEMBERED_PAGES = 4096
"""Unreadable pages that are remembered; from a disk with more of them the tier backs off as a
whole."""

SHORTAGES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
"""Errors of a process or a system that lacks resources: no fault of the page that was read."""
OPENING = "opening"
"""The state of a tier whose directory is being read for the first time."""
UNAVAILABLE = "unavailable: "
"""How the state of a tier begins whose directory cannot be had."""
NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT))
"""Errors that deleting files may cure: too few bytes or inodes, or a quota of either."""


class Health:
    """Remembers failures until they are over. Not thread-safe: its owner's lock guards it.

    A page is unreadable from a failed read until it is read whole or written again. It is hidden,
    as if it were absent, for most of that time; when its pause is over, one read may try it. After
    failed reads of several pages in a row all pages are hidden for a while.
    """

    def __init__(self) -> None:
        self._unreadable: OrderedDict[PageId, CircuitBreaker] = OrderedDict()
        self.reads = CircuitBreaker()
        self._blames_disk = False
        self._read_error = ""
        self.write_error = ""
        self.opening = ""

    @property
    def state(self) -> str:
        return self.opening or self.write_error or self._read_error or "ok"

    @property
    def trouble(self) -> str:
        """The state from a failed write until the next one that succeeds, and without the
        directory; else ""."""
        refuses = self.write_error or self.opening.startswith(UNAVAILABLE)
        return self.opening or self.write_error if refuses else ""

    @property
    def hides_pages(self) -> bool:
        return bool(self._unreadable) or self.reads.is_open

    def is_hidden(self, page: PageId) -> bool:
        known = self._unreadable.get(page)
        return self.reads.is_open or (known is not None and known.is_open)

    def is_unreadable(self, page: PageId) -> bool:
        """True when a page could not be read and was not read or written since. True for all pages
        when reads fail one after the other: a page that is computed again is then better written
        again."""
        return page in self._unreadable or (self.reads.tripped and self._blames_disk)

    def begin_read(self, page: PageId) -> bool:
        """Return whether a page may be opened now; with True, `end_read`, `reads.left` or
        `fail_read` must follow."""
        known = self._unreadable.get(page)
        return (known is None or not known.is_open) and self.reads.enter()

    def end_read(self, page: PageId, *, whole: bool) -> None:
        self.reads.succeeded(sure=whole)
        if whole:
            self._unreadable.pop(page, None)
            self._read_error = ""

    def fail_read(self, page: PageId, error: OSError) -> bool:
        """Note a failed read; True when the page itself is to blame, so that it must be written
        again."""
        self._read_error = _failing(error)
        self.reads.failed()
        self._blames_disk = error.errno not in SHORTAGES
        if self._blames_disk:
            known = self._unreadable.pop(page, None)
            self._unreadable[page] = known or CircuitBreaker(1, PAGE_BOUNDS)
            self._unreadable[page].failed()
            if len(self._unreadable) > REMEMBERED_PAGES:
                self._unreadable.popitem(last=False)
        return self._blames_disk

    def forget(self, page: PageId) -> None:
        self._unreadable.pop(page, None)

    def end_write(self) -> None:
        self.write_error = ""
        if self._blames_disk:
            self.reads.ask_again()
        else:
            # A process that had a descriptor and memory to write has them to read.
            self.reads.succeeded(sure=False)
        if not self.reads.tripped:
            self._read_error = ""

    def fail_write(self, error: OSError) -> None:
        self.write_error = _failing(error)

    def fail_open(self, error: OSError) -> None:
        place = f"{error.filename}: " if error.filename else ""
        self.opening = f"{UNAVAILABLE}{place}{error.strerror or error}"


def _failing(error: OSError) -> str:
    return f"failing: {error.strerror or error}"
