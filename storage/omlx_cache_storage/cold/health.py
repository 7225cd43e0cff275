"""Failed reads and writes of a cold tier: when it backs off from a page or the disk, and the state
that it reports."""

import errno
from collections import OrderedDict

from omlx_cache_storage.breaker import CircuitBreaker
from omlx_cache_storage.page import PageId

FIRST_SECONDS = 30.0
LONGEST_SECONDS = 3600.0
"""How long the tier backs off from an unreadable page: longer than computing it again takes, so
that the commit that follows still finds it absent."""
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
        self._reads = CircuitBreaker()
        self._blames_disk = False
        self._read_error = ""
        self._write_error = ""
        self._opening = ""

    @property
    def state(self) -> str:
        return self._opening or self._write_error or self._read_error or "ok"

    def begin_open(self) -> None:
        self._opening = OPENING

    @property
    def refuses_writes(self) -> bool:
        """True from a failed write until the next one that succeeds, and without the directory."""
        return bool(self._write_error) or self._opening.startswith(UNAVAILABLE)

    @property
    def hides_pages(self) -> bool:
        return bool(self._unreadable) or self._reads.is_open

    def is_hidden(self, page: PageId) -> bool:
        known = self._unreadable.get(page)
        return self._reads.is_open or (known is not None and known.is_open)

    def is_unreadable(self, page: PageId) -> bool:
        """True when a page could not be read and was not read or written since. True for all pages
        when reads fail one after the other: a page that is computed again is then better written
        again."""
        return page in self._unreadable or (self._reads.tripped and self._blames_disk)

    def begin_read(self, page: PageId) -> bool:
        """Return whether a page may be opened now; with True, `end_read`, `leave_read` or
        `fail_read` must follow."""
        return not self.is_hidden(page) and self._reads.enter()

    def end_read(self, page: PageId, *, whole: bool) -> None:
        """Note a read that worked; one that was not `whole` says little of the page."""
        self._reads.succeeded(sure=whole)
        if whole:
            self.forget(page)
            self._read_error = ""

    def leave_read(self) -> None:
        self._reads.left()

    def fail_read(self, page: PageId, error: OSError) -> bool:
        """Note a failed read; True when the page itself is to blame, so that it must be written
        again."""
        self._read_error = _failing(error)
        self._reads.failed()
        self._blames_disk = error.errno not in SHORTAGES
        if self._blames_disk:
            known = self._unreadable.pop(page, None)
            self._unreadable[page] = known or CircuitBreaker(1, (FIRST_SECONDS, LONGEST_SECONDS))
            self._unreadable[page].failed()
            if len(self._unreadable) > REMEMBERED_PAGES:
                self._unreadable.popitem(last=False)
        return self._blames_disk

    def forget(self, page: PageId) -> None:
        self._unreadable.pop(page, None)

    def end_write(self) -> None:
        self._write_error = ""
        if self._blames_disk:
            self._reads.ask_again()
        else:
            # A process that had a descriptor and memory to write has them to read.
            self._reads.succeeded(sure=False)
        if not self._reads.tripped:
            self._read_error = ""

    def fail_write(self, error: OSError) -> None:
        self._write_error = _failing(error)

    def fill_up(self) -> None:
        self._write_error = "full"

    def fail_open(self, error: OSError) -> None:
        place = f"{error.filename}: " if error.filename else ""
        self._opening = f"{UNAVAILABLE}{place}{error.strerror or error}"

    def end_open(self) -> None:
        self._opening = ""


def _failing(error: OSError) -> str:
    return f"failing: {error.strerror or error}"
