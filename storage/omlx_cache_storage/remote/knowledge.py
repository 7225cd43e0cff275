"""A memory, for a while, of a remote store's pages: which of them it had when it was asked."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from omlx_cache_storage import errors
from omlx_cache_storage.errors import CorruptPage
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId, PageInfo, Tail

KNOWN_SECONDS = 300.0
ABSENT_SECONDS = 1.0
"""An absent page is asked for again after so long: other machines write it at any time."""
SHUNNED_SECONDS = 300.0
"""How long the tier backs off from a page that turned out to be another one, damaged, or
missing."""
SPOILT = (CorruptPage.reason, errors.REMOTE_LOST)
"""Words for pages of which the store had another value than it should."""
MOST_PAGES = 200_000
"""Some 100 MB."""
MOST_TAILS = 4096
"""Boundaries that are remembered with the tails behind them: at most one for each token of a block,
and group."""


class Seen(NamedTuple):
    """A page that the store had. `wire_bytes` is the length of its value, 0 when only others' word
    says that it is there; `was_read` when the page came from there."""

    namespace: BlockKey
    info: PageInfo
    wire_bytes: int
    until: float
    was_read: bool = False


class _Absent(NamedTuple):
    """A page that is not asked for `until` then, and is not taken to be there on the word of others
    `shunned` until then."""

    until: float
    why: str = ""
    shunned: float = 0.0


_NOTHING = _Absent(0.0)


class Knowledge:
    """Remembers `most` pages, and the tails of `MOST_TAILS` boundaries, the latest ones. Any thread
    may call, and nothing waits.

    `_lock` guards changes of `_pages` and `_tails`; looking one up in them is atomic.
    """

    def __init__(self, clock: Callable[[], float], most: int = MOST_PAGES) -> None:
        self._clock = clock
        self._most = most
        self._lock = threading.Lock()
        self._pages: OrderedDict[PageId, Seen | _Absent] = OrderedDict()
        self._tails: OrderedDict[BlockKey, set[Tail]] = OrderedDict()

    def __len__(self) -> int:
        with self._lock:
            return sum(isinstance(known, Seen) for known in self._pages.values())

    def note(
        self,
        namespace: BlockKey,
        page: PageId,
        info: PageInfo,
        wire_bytes: int = 0,
        *,
        was_read: bool = False,
    ) -> bool:
        with self._lock:
            before = self.seen(page)
            self._pages[page] = Seen(
                namespace, info, wire_bytes, self._clock() + KNOWN_SECONDS, was_read
            )
            self._pages.move_to_end(page)
            _trim(self._pages, self._most)
        return before is None or before.info != info

    def assume(self, namespace: BlockKey, page: PageId, info: PageInfo) -> bool:
        """Assume a page to be there on another page's evidence; return whether that is news. A
        known page, and one that was found absent, or bad, lately, stays as it is."""
        known = self._pages.get(page, _NOTHING)
        until = max(known.until, known.shunned) if isinstance(known, _Absent) else known.until
        return until <= self._clock() and self.note(namespace, page, info)

    def note_absent(
        self, pages: Iterable[PageId], why: str = "", seconds: float = ABSENT_SECONDS
    ) -> None:
        """Know for a while that pages are not there, or in a word `why` they cannot be had. To be
        absent is no news of a page that was found to be spoilt lately: that word stays."""
        now = self._clock()
        absent = _Absent(now + seconds, why, now + SHUNNED_SECONDS if why else 0.0)
        with self._lock:
            for page in pages:
                known = self._pages.pop(page, absent)
                if (
                    why
                    or isinstance(known, Seen)
                    or known.why not in SPOILT
                    or known.shunned <= now
                ):
                    known = absent
                self._pages[page] = known._replace(until=max(known.until, absent.until))
            _trim(self._pages, self._most)

    def seen(self, page: PageId) -> Seen | None:
        known = self._pages.get(page)
        return known if isinstance(known, Seen) and known.until > self._clock() else None

    def find_all(self, pages: Sequence[PageId]) -> list[PageInfo | None]:
        now = self._clock()
        return [
            one.info if isinstance(one, Seen) and one.until > now else None
            for one in map(self._pages.get, pages)
        ]

    def unknown(self, pages: Iterable[PageId]) -> list[PageId]:
        now = self._clock()
        return [page for page in pages if self._pages.get(page, _NOTHING).until <= now]

    def why_absent(self, pages: Iterable[PageId]) -> dict[PageId, str]:
        now = self._clock()
        return {
            page: known.why
            for page in pages
            if isinstance(known := self._pages.get(page), _Absent) and known.shunned > now
        }

    def is_foreign(self, page: PageId) -> bool:
        """Return whether the store had there, a moment ago, what this machine takes for none of its
        own and must not replace."""
        known = self._pages.get(page, _NOTHING)
        is_ours = isinstance(known, Seen) or known.why in ("", *SPOILT)
        return not is_ours and known.until > self._clock()

    def note_tails(self, parent: BlockKey, tails: Iterable[Tail]) -> None:
        with self._lock:
            self._tails[parent] = self._tails.pop(parent, set()).union(tails)
            _trim(self._tails, MOST_TAILS)

    def tails_of(self, parents: Sequence[BlockKey]) -> set[Tail]:
        return set().union(*(self._tails.get(parent, ()) for parent in parents))


def _trim(known: "OrderedDict[Any, Any]", most: int) -> None:
    while len(known) > most:
        known.popitem(last=False)
