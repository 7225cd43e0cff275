"""Eviction policies: for how long a page that was used is not given up for a new one.

Both order pages by their last use, a chain's deep end first. `lru` lets a new page always push
out the first in that order. `keep` refuses the new page when that one was used a short while ago:
agents come back after some seconds, and when more of them are active than there is room for,
pushing out the one that is about to return serves nobody (docs/reuse.md).
"""

from collections.abc import Iterable
from typing import Protocol

from omlx_cache_storage.eviction.learned import Learned
from omlx_cache_storage.page import PageId


class EvictionPolicy(Protocol):
    """What a tier tells of its pages, and asks. Its owner's lock guards it.

    Stamps are those of the tier's clock. A request has one for all its pages; what it stores later
    may have a newer one, which is no use of what it stored before.
    """

    @property
    def patience_ns(self) -> int:
        """For how long after its use a page is not given up for a new one."""
        ...

    def wanted(self, pages: Iterable[PageId], began_ns: int) -> None:
        """Note pages that are not here and that a request wants which began at a stamp."""

    def added(self, stamp_ns: int, count: int = 1) -> None:
        """Note pages that came, used at a stamp."""

    def moved(self, before_ns: int, stamp_ns: int, count: int = 1, *, used: bool) -> None:
        """Note pages that have another stamp now; `used`: since a request wanted them."""

    def left(self, page: PageId, stamp_ns: int) -> None:
        """Note a page that went, and its stamp."""

    def refused(self, pages: Iterable[PageId], began_ns: int) -> None:
        """Note pages that a request wanted which began at a stamp, and that were not taken."""

    def shifted(self, stamp_ns: int, used_ns: int) -> None:
        """Note that pages at a stamp were used at another time than that: a hint moved it."""

    def learned(self) -> Learned | None:
        """Return what may be kept for the next process, None when there is nothing."""
        ...


class Lru:
    """The first in the order always leaves."""

    patience_ns = 0

    def wanted(self, pages: Iterable[PageId], began_ns: int) -> None: ...
    def added(self, stamp_ns: int, count: int = 1) -> None: ...
    def moved(self, before_ns: int, stamp_ns: int, count: int = 1, *, used: bool) -> None: ...
    def left(self, page: PageId, stamp_ns: int) -> None: ...
    def refused(self, pages: Iterable[PageId], began_ns: int) -> None: ...
    def shifted(self, stamp_ns: int, used_ns: int) -> None: ...
    def learned(self) -> Learned | None:
        return None
