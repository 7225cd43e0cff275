"""What is known of a remote store for a while: pages that it had when it was asked, or had not."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from omlx_cache_storage.errors import CorruptPage
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId, PageInfo, Tail
from omlx_cache_storage.remote import reasons
from omlx_cache_storage.remote.names import TailMember

KNOWN_SECONDS = 300.0
ABSENT_SECONDS = 1.0
"""What was not there is asked for again so soon: others write it at any time."""
SHUNNED_SECONDS = 300.0
"""For so long a page is left alone that turned out to be another one, damaged, or gone."""
SPOILT = (CorruptPage.reason, reasons.LOST)
"""Words for pages of which the store had something, and not what it should have."""
MOST_PAGES = 200_000
"""Some 100 MB."""


class Seen(NamedTuple):
    """A page that the store had. `wire_bytes` is the length of its value, 0 when only its
    neighbours were seen; `was_read` when the page came from there."""

    namespace: BlockKey
    info: PageInfo
    wire_bytes: int
    until: float
    was_read: bool = False


class _Absent(NamedTuple):
    """A page that is not asked for `until` then, and is not taken to be there on the word of others
    `shunned` until then."""

    until: float
    why: str
    shunned: float


class _Tails(NamedTuple):
    """The pages that end inside one block. They are asked for again sooner than they are forgotten:
    others add some at any time."""

    asked_until: float
    until: float
    members: frozenset[TailMember]


_PRESENT = _Absent(0.0, "", 0.0)
_NO_TAILS = _Tails(0.0, 0.0, frozenset())


class Knowledge:
    """Remembers `MOST_PAGES` of each kind, the latest ones; any thread may call, nothing waits.

    `_lock` guards `_seen`, `_absent` and `_tails` (by parent, with `_members` in all).
    """

    def __init__(self, clock: Callable[[], float], most: int = MOST_PAGES) -> None:
        self._clock = clock
        self._most = most
        self._lock = threading.Lock()
        self._seen: OrderedDict[PageId, Seen] = OrderedDict()
        self._absent: OrderedDict[PageId, _Absent] = OrderedDict()
        self._tails: OrderedDict[BlockKey, _Tails] = OrderedDict()
        self._members = 0

    def __len__(self) -> int:
        with self._lock:
            return len(self._seen)

    def note(
        self, namespace: BlockKey, pages: Iterable[tuple[PageId, PageInfo, int]]
    ) -> list[PageId]:
        """Know pages with what they hold and their values' lengths; return those that are news."""
        until = self._clock() + KNOWN_SECONDS
        news = []
        with self._lock:
            for page, info, wire_bytes in pages:
                before = self._seen.pop(page, None)
                if before is None or before.info != info:
                    news.append(page)
                elif not wire_bytes:
                    wire_bytes = before.wire_bytes
                self._seen[page] = Seen(namespace, info, wire_bytes, until)
                self._absent.pop(page, None)
            while len(self._seen) > self._most:
                self._seen.popitem(last=False)
        return news

    def note_absent(
        self, pages: Iterable[PageId], why: str = "", seconds: float = ABSENT_SECONDS
    ) -> None:
        """Know for a while that pages are not there, or in a word `why` they cannot be had. To be
        absent is no news of a page that was found to be spoilt lately: that word stays."""
        now = self._clock()
        absent = _Absent(now + seconds, why, now + SHUNNED_SECONDS if why else 0.0)
        with self._lock:
            for page in pages:
                self._seen.pop(page, None)
                before = self._absent.pop(page, _PRESENT)
                stays = not why and before.why in SPOILT and before.shunned > now
                until = max(before.until, absent.until)
                self._absent[page] = before._replace(until=until) if stays else absent
            while len(self._absent) > self._most:
                self._absent.popitem(last=False)

    def is_shunned(self, page: PageId) -> bool:
        """Return whether a page was found to be absent, or bad, lately."""
        now = self._clock()
        with self._lock:
            return self._is_gone(page, now)

    def why_absent(self, pages: Iterable[PageId]) -> dict[PageId, str]:
        """Return the word for those of the pages that cannot be had."""
        now = self._clock()
        with self._lock:
            found = {page: self._absent.get(page, _PRESENT) for page in pages}
        return {page: gone.why for page, gone in found.items() if gone.shunned > now}

    def note_tails(
        self, parent: BlockKey, members: Iterable[TailMember], *, whole: bool = True
    ) -> None:
        """Know the pages that end in the block after a boundary, or with `whole` False some more
        of them."""
        now = self._clock()
        with self._lock:
            before = self._tails.pop(parent, _NO_TAILS)
            known = frozenset(members)
            if not whole and before.until > now:
                known |= before.members
            self._tails[parent] = _Tails(
                now + ABSENT_SECONDS if whole else before.asked_until,
                now + KNOWN_SECONDS,
                known,
            )
            self._members += len(known) - len(before.members)
            while max(len(self._tails), self._members) > self._most:
                _, gone = self._tails.popitem(last=False)
                self._members -= len(gone.members)

    def seen(self, page: PageId) -> Seen | None:
        now = self._clock()
        with self._lock:
            found = self._seen.get(page)
        return found if found is not None and found.until > now else None

    def find_all(self, pages: Sequence[PageId]) -> list[PageInfo | None]:
        now = self._clock()
        with self._lock:
            if not self._seen:
                return [None] * len(pages)
            found = list(map(self._seen.get, pages))
        return [one.info if one is not None and one.until > now else None for one in found]

    def unknown(self, pages: Iterable[PageId]) -> list[PageId]:
        """Return those of the pages of which nothing is known now."""
        now = self._clock()
        with self._lock:
            return [page for page in pages if not self._is_known(page, now)]

    def assumable(self, pages: Iterable[PageId]) -> set[PageId]:
        """Return those of the pages that may be taken to be there on the word of others: nothing is
        known of them, and none was found to be absent, or bad, lately."""
        now = self._clock()
        with self._lock:
            return {
                page
                for page in pages
                if not self._is_known(page, now) and not self._is_gone(page, now)
            }

    def _is_known(self, page: PageId, now: float) -> bool:
        seen = self._seen.get(page)
        return (seen is not None and seen.until > now) or self._absent.get(
            page, _PRESENT
        ).until > now

    def tails_of(self, parents: Sequence[BlockKey]) -> set[Tail]:
        now = self._clock()
        found: set[Tail] = set()
        with self._lock:
            if self._tails:
                for known in map(self._tails.get, parents):
                    if known is not None and known.until > now:
                        found.update(
                            Tail(position, group)
                            for key, position, _, _, _, group in known.members
                            if not self._is_gone(PageId(key, group), now)
                        )
        return found

    def _is_gone(self, page: PageId, now: float) -> bool:
        gone = self._absent.get(page)
        return gone is not None and max(gone.until, gone.shunned) > now

    def members_of(self, parent: BlockKey) -> frozenset[TailMember] | None:
        """Return what was asked lately of the pages that end in the block after a boundary, None
        when nothing was."""
        now = self._clock()
        with self._lock:
            known = self._tails.get(parent, _NO_TAILS)
        return known.members if known.asked_until > now else None

    def note_read(self, page: PageId) -> None:
        """Know that a page came from there."""
        with self._lock:
            if page in self._seen:
                self._seen[page] = self._seen[page]._replace(was_read=True)

    def forget(self, pages: Iterable[PageId]) -> int:
        """Know nothing of pages any more; return how many were known."""
        with self._lock:
            return sum(self._seen.pop(page, None) is not None for page in pages)
