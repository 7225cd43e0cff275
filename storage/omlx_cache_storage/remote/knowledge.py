"""A remote store's pages by their names, and what is known of them for a while: those that it had
when it was asked, or had not."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from omlx_cache_storage.errors import CorruptPage, ForeignPage, PageError
from omlx_cache_storage.format.wrapping import unwrapped
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import (
    REMOTE,
    Page,
    PageId,
    PageInfo,
    PageMeta,
    Placed,
    Tail,
    WriteResult,
)
from omlx_cache_storage.remote import reasons
from omlx_cache_storage.remote.engine import RemoteEngine, cut
from omlx_cache_storage.remote.envelope import (
    WIRE_BYTES,
    Envelope,
    RemoteKeys,
    RemoteNames,
    TailMember,
    read_envelope,
    seal,
)

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
    why: str = ""
    shunned: float = 0.0


class _Tails(NamedTuple):
    """The pages that end inside one block. They are asked for again sooner than they are forgotten:
    others add some at any time."""

    asked_until: float
    until: float
    members: frozenset[TailMember]


_NOTHING = _Absent(0.0)
_NO_TAILS = _Tails(0.0, 0.0, frozenset())


class Knowledge:
    """Remembers `MOST_PAGES` pages, and as many tails, the latest ones. Any thread may call, and
    nothing waits.

    `_lock` guards `_pages` and `_tails` (by parent, with `_members` in all).
    """

    def __init__(self, clock: Callable[[], float], most: int = MOST_PAGES) -> None:
        self._clock = clock
        self._most = most
        self._lock = threading.Lock()
        self._pages: OrderedDict[PageId, Seen | _Absent] = OrderedDict()
        self._tails: OrderedDict[BlockKey, _Tails] = OrderedDict()
        self._members = 0

    def __len__(self) -> int:
        """Return how many pages are known to be there, or were."""
        with self._lock:
            pages = list(self._pages.values())
        return sum(isinstance(known, Seen) for known in pages)

    def note(
        self, namespace: BlockKey, pages: Iterable[tuple[PageId, PageInfo, int]]
    ) -> list[PageId]:
        """Know pages with what they hold and their values' lengths; return those that are news."""
        until = self._clock() + KNOWN_SECONDS
        news = []
        with self._lock:
            for page, info, wire_bytes in pages:
                before = self._pages.pop(page, _NOTHING)
                if not isinstance(before, Seen) or before.info != info:
                    news.append(page)
                elif not wire_bytes:
                    wire_bytes = before.wire_bytes
                self._pages[page] = Seen(namespace, info, wire_bytes, until)
            self._forget_the_oldest()
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
                before = self._pages.pop(page, None)
                if (
                    not why
                    and isinstance(before, _Absent)
                    and before.why in SPOILT
                    and before.shunned > now
                ):
                    self._pages[page] = before._replace(until=max(before.until, absent.until))
                else:
                    self._pages[page] = absent
            self._forget_the_oldest()

    def _forget_the_oldest(self) -> None:
        while len(self._pages) > self._most:
            self._pages.popitem(last=False)

    def seen(self, page: PageId) -> Seen | None:
        now = self._clock()
        with self._lock:
            known = self._pages.get(page)
        return known if isinstance(known, Seen) and known.until > now else None

    def find_all(self, pages: Sequence[PageId]) -> list[PageInfo | None]:
        now = self._clock()
        with self._lock:
            if not self._pages:
                return [None] * len(pages)
            found = list(map(self._pages.get, pages))
        return [one.info if isinstance(one, Seen) and one.until > now else None for one in found]

    def unknown(self, pages: Iterable[PageId]) -> list[PageId]:
        """Return those of the pages of which nothing is known now."""
        now = self._clock()
        with self._lock:
            return [page for page in pages if self._pages.get(page, _NOTHING).until <= now]

    def is_shunned(self, page: PageId) -> bool:
        """Return whether a page was found to be absent, or bad, lately."""
        now = self._clock()
        with self._lock:
            return self._is_gone(page, now)

    def _is_gone(self, page: PageId, now: float) -> bool:
        known = self._pages.get(page)
        return isinstance(known, _Absent) and max(known.until, known.shunned) > now

    def why_absent(self, pages: Iterable[PageId]) -> dict[PageId, str]:
        """Return the word for those of the pages that cannot be had."""
        now = self._clock()
        with self._lock:
            found = {page: self._pages.get(page) for page in pages}
        return {
            page: known.why
            for page, known in found.items()
            if isinstance(known, _Absent) and known.shunned > now
        }

    def note_read(self, page: PageId) -> None:
        """Know that a page came from there."""
        with self._lock:
            known = self._pages.get(page)
            if isinstance(known, Seen):
                self._pages[page] = known._replace(was_read=True)

    def forget(self, page: PageId) -> None:
        """Know nothing of a page any more."""
        with self._lock:
            self._pages.pop(page, None)

    def note_tails(
        self, parent: BlockKey, members: Iterable[TailMember], *, whole: bool = True
    ) -> None:
        """Know the pages that end in the block after a boundary, or with `whole` False some more
        of them."""
        now = self._clock()
        known = frozenset(members)
        with self._lock:
            before = self._tails.pop(parent, _NO_TAILS)
            if not whole and before.until > now:
                known |= before.members
            asked_until = now + ABSENT_SECONDS if whole else before.asked_until
            self._tails[parent] = _Tails(asked_until, now + KNOWN_SECONDS, known)
            self._members += len(known) - len(before.members)
            while max(len(self._tails), self._members) > self._most:
                _, gone = self._tails.popitem(last=False)
                self._members -= len(gone.members)

    def tails_of(self, parents: Sequence[BlockKey]) -> set[Tail]:
        now = self._clock()
        with self._lock:
            known = (
                [self._tails.get(parent, _NO_TAILS) for parent in parents] if self._tails else ()
            )
            return {
                Tail(member.position, member.group)
                for tails in known
                if tails.until > now
                for member in tails.members
                if not self._is_gone(PageId(member.key, member.group), now)
            }

    def members_of(self, parent: BlockKey) -> frozenset[TailMember] | None:
        """Return what was asked lately of the pages that end in the block after a boundary, None
        when nothing was."""
        with self._lock:
            known = self._tails.get(parent, _NO_TAILS)
        return known.members if known.asked_until > self._clock() else None


@dataclass(frozen=True, slots=True)
class RemoteStore:
    """Pages of an engine by their names: looked at and written. Any thread may call, and waits for
    the network; what the store says becomes known. Raises RemoteError.

    `bad` is told of values that are none of ours, `answered` how long each question took.
    """

    engine: RemoteEngine
    names: RemoteNames
    keys: RemoteKeys
    known: Knowledge
    packs: bool = False
    bad: Callable[[PageError], None] = lambda error: None
    answered: Callable[[float], None] = lambda seconds: None

    def look(
        self,
        pages: Sequence[Placed],
        sets: Sequence[str] = (),
        *,
        ignored: Collection[PageId] = (),
    ) -> tuple[list[Envelope | PageError | None], list[list[str]]]:
        """Return what the envelope of each page says, or why it is none, None for a page that is
        not there, and the members of sets: by one question. Of those that are `ignored` nothing
        becomes known, and None is returned."""
        began = time.perf_counter()
        heads, members = self.engine.look([self.names.page(*p) for p in pages], WIRE_BYTES, sets)
        self.answered(time.perf_counter() - began)
        said = [
            None if head is None or placed.page in ignored else self._described(placed, head)
            for placed, head in zip(pages, heads, strict=True)
        ]
        self.known.note_absent(
            [placed.page for placed, head in zip(pages, heads, strict=True) if head is None]
        )
        return said, members

    def present(self, pages: Sequence[Placed]) -> list[PageInfo | None]:
        """Return what the store has of each page, by one question. One that was read and found to
        be damaged looks well from its first bytes, and is none."""
        said, _ = self.look(pages, ignored=self._damaged(placed.page for placed in pages))
        return [one.info if isinstance(one, Envelope) else None for one in said]

    def is_foreign(self, page: PageId) -> bool:
        """Return whether the store had, a moment ago, a page of another secret there."""
        foreign = self.known.why_absent([page]).get(page) == reasons.FOREIGN
        return foreign and not self.known.unknown([page])

    def write(self, page: Page) -> tuple[WriteResult, int]:
        """Publish a page whole or not at all, unless there is one that holds as much; return also
        how many bytes that took. `refused`: there is one that only somebody with another secret can
        read."""
        meta = unwrapped(page.meta)
        placed = Placed(meta.namespace, meta.id)
        name = self.names.page(*placed)
        pieces = seal(self.names.bound(*placed), page, self.keys, packs=self.packs)
        nbytes = sum(memoryview(piece).nbytes for piece in pieces)
        parts = cut(pieces, self.engine.part_bytes)
        damaged = meta.id in self._damaged([meta.id])
        if not self.engine.write(name, parts, replace=damaged):
            if damaged:
                return "busy", 0
            (found,), _ = self.look([placed])
            if isinstance(found, Envelope) and found.info.held >= meta.held:
                self._add_tail(meta, found.wire_bytes)
                return "present", 0
            if isinstance(found, PageError) and not isinstance(found, CorruptPage):
                return "refused", 0
            if not self.engine.write(name, parts, replace=True):
                return "busy", 0
        info = PageInfo(meta.position, meta.held, meta.nbytes, REMOTE)
        self.known.note(meta.namespace, [(meta.id, info, nbytes)])
        self._add_tail(meta, nbytes)
        return "written", nbytes

    def _described(self, placed: Placed, head: bytes) -> Envelope | PageError:
        """Return what a value's first bytes say of it, which is known from then on."""
        try:
            said = read_envelope(self.names.bound(*placed), head, self.keys)
        except PageError as error:
            self.bad(error)
            is_foreign = isinstance(error, ForeignPage)
            self.known.note_absent([placed.page], reasons.FOREIGN if is_foreign else error.reason)
            return error
        self.known.note(placed.namespace, [(placed.page, said.info, said.wire_bytes)])
        return said

    def _add_tail(self, meta: PageMeta, nbytes: int) -> None:
        """Have a page that ends inside a block found by the boundary before. Of one that was there
        already it is said again: who wrote it may not have come to that."""
        if not meta.tail:
            return
        tail = TailMember(meta.key, meta.position, meta.held, meta.nbytes, nbytes, meta.group)
        self.engine.add(self.names.tails(meta.namespace, meta.parent), tail.text())
        self.known.note_tails(meta.parent, [tail], whole=False)

    def _damaged(self, pages: Iterable[PageId]) -> set[PageId]:
        whys = self.known.why_absent(pages)
        return {page for page, why in whys.items() if why == CorruptPage.reason}
