"""What happened to pages and requests lately: a bounded log that others read and follow, and which
pages a store had and has no more, which tells "evicted" from "never stored".

A reader asks again and again for what lies beyond the last number that it has seen, and is told how
much of it was forgotten meanwhile. No tokens and no text of prompts are in it.
"""

import threading
import time
import zlib
from collections import deque
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from omlx_cache_storage.format.names import PARENT_HINT_BYTES, StoredPage
from omlx_cache_storage.interrupts import uninterrupted, wait_in_turns
from omlx_cache_storage.page import PAGED, PageId, PageMeta
from omlx_cache_storage.stats import KINDS, Kind

EventTier = Literal["hot", "cold", "remote", ""]
"""Empty for what concerns no one tier: a request."""

REMEMBERED = 16_384
"""About 6 MB when full: some seconds of the fastest disk."""
DETAIL_CHARACTERS = 200
_NAMESPACES = 4096
OTHER_PROCESS = "other process"


class Event(NamedTuple):
    """One thing that happened, `at` in seconds since the epoch; keys are hexadecimal, "" for none.

    A page ends at `position` and holds the `tokens` before it. `parent` is the key of the block
    before, None for the first of a chain, and only the first 16 digits of it where a file's name is
    all that is known. Of a request, `position` is how long its prompt is, `tokens` what was
    restored of it, and `detail` says which tier gave them.
    """

    number: int
    at: float
    kind: Kind
    tier: EventTier
    namespace: str
    key: str
    parent: str | None
    group: str
    position: int
    tokens: int
    nbytes: int
    detail: str

    def to_dict(self) -> dict[str, object]:
        """Return plain values, for JSON and the control socket."""
        return self._asdict()


class EventPage(NamedTuple):
    """A part of a log: `upto` is what `after` is next, `dropped` how many of the events before it
    were forgotten before they were asked for. `began` tells one log from another: where it is not
    what it was, the numbers begin again."""

    upto: int
    events: tuple[Event, ...]
    dropped: int
    began: float


_Entry: TypeAlias = tuple[float, Kind, EventTier, bytes, bytes, bytes, str, int, int, int, str]
"""An event as it is kept: its fields but for the number, keys as bytes that others hold as well."""
_KIND: Final = 1


class EventLog:
    """Remembers the latest `capacity` events; one of 0 remembers and costs nothing. Any thread may
    call; to note something takes about a microsecond, and waits for no reader.

    `_lock` guards `_ring`, `_count`, `_counts`, `_paged` and `_waiting` (readers that wait). Tiers
    note events under locks of their own, so that the order is theirs; nothing is called from here.
    A finalizer and a handler of a signal note nothing.
    """

    def __init__(self, capacity: int = REMEMBERED) -> None:
        self.began = time.time()
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._waiting = 0
        self._ring: deque[_Entry] = deque(maxlen=capacity)
        self._count = 0
        self._counts: dict[str, int] = dict.fromkeys(KINDS, 0)
        self._paged: dict[bytes, None] = {}

    # Noting.

    def note_page(self, kind: Kind, tier: EventTier, meta: PageMeta, detail: str = "") -> None:
        """Note something of a page."""
        key, parent, sizes = meta.key, meta.parent, (meta.position, meta.held, meta.nbytes)
        self._note(kind, tier, meta.namespace, key, parent, meta.group, *sizes, detail)

    def note_file(
        self, kind: Kind, stored: StoredPage, detail: str = "", parent: bytes | None = None
    ) -> None:
        """Note something of a page's file in the cold tier."""
        (key, group), hint, position, held, _ = stored.name
        known = hint if parent is None else parent
        sizes = position, held, stored.nbytes
        self._note(kind, "cold", stored.namespace, key, known, group, *sizes, detail)

    def note_files(self, kind: Kind, stored: Iterable[StoredPage], detail: str = "") -> None:
        """Note the same of many files."""
        for one in stored if self._ring.maxlen else ():
            self.note_file(kind, one, detail)

    def note_tier(
        self, kind: Kind, tier: EventTier, namespace: bytes = b"", detail: str = ""
    ) -> None:
        """Note something of all that a tier has, or has of a namespace."""
        self._note(kind, tier, namespace, b"", b"", "", 0, 0, 0, detail)

    def note_request(
        self, namespace: str, prompt_tokens: int, restored: int, cold: int, remote: int = 0
    ) -> None:
        """Note what a request got; nothing for one that got nothing. A namespace that is no digest
        is left out."""
        if restored:
            try:
                digest = bytes.fromhex(namespace)
            except ValueError:
                digest = b""
            detail = f"{restored - cold - remote} hot, {cold} cold"
            detail += f", {remote} remote" if remote else ""
            self._note("restored", "", digest, b"", b"", "", prompt_tokens, restored, 0, detail)

    def _note(
        self, kind: Kind, tier: EventTier, namespace: bytes, key: bytes, parent: bytes, group: str,
        position: int, tokens: int, nbytes: int, detail: str,
    ) -> None:  # fmt: skip
        if not self._ring.maxlen:
            return
        with self._lock:
            at = time.time()
            self._ring.append(
                (at, kind, tier, namespace, key, parent, group, position, tokens, nbytes, detail)
            )
            self._count += 1
            self._counts[kind] += 1
            if group == PAGED and namespace not in self._paged:
                if len(self._paged) >= _NAMESPACES:
                    del self._paged[next(iter(self._paged))]
                self._paged[namespace] = None
            if self._waiting:
                self._news.notify_all()

    # Reading.

    @uninterrupted
    def page(
        self, after: int | None, limit: int, kinds: Collection[str] | None = None
    ) -> EventPage:
        """Return the oldest `limit` events beyond the number `after`, or the latest ones without
        it; of these kinds only, where they are given."""
        with self._lock:
            count = self._count
            oldest = count - len(self._ring)
            # A number that was never reached is another log's: all that is known is news.
            asked = 0 if after is None or after > count else after
            dropped = max(0, oldest - asked) if after is not None else 0
            start, stop = max(oldest, asked), count
            if kinds is None and after is None:
                start = max(start, count - limit)
            elif kinds is None:
                stop = min(count, start + limit)
            entries = list(islice(self._ring, start - oldest, stop - oldest))
        numbered = enumerate(entries, start + 1)
        found = [(number, one) for number, one in numbered if kinds is None or one[_KIND] in kinds]
        chosen = found[-limit:] if after is None else found[:limit]
        upto = chosen[-1][0] if after is not None and len(chosen) < len(found) else stop
        events = tuple(_event(number, entry) for number, entry in chosen)
        return EventPage(upto, events, dropped, self.began)

    def wait(self, after: int, timeout: float) -> bool:
        """Block until there is an event beyond the number `after`; False after `timeout` seconds.
        Handlers of signals run meanwhile."""

        def turn(seconds: float | None) -> bool:
            with self._lock:
                self._waiting += 1
                try:
                    return self._news.wait_for(lambda: self._count != after, seconds)
                finally:
                    self._waiting -= 1

        return wait_in_turns(turn, timeout)

    @uninterrupted
    def counts(self) -> dict[str, int]:
        """Return how many events of each kind there have been, forgotten ones included."""
        with self._lock:
            return dict(self._counts)

    def paged(self) -> frozenset[str]:
        """Return the namespaces that were seen to have pages of which each needs all before it."""
        with self._lock:
            return frozenset(namespace.hex() for namespace in self._paged)


SILENT = EventLog(0)
"""For tiers that nobody asks."""


def _event(number: int, entry: _Entry) -> Event:
    at, kind, tier, namespace, key, parent, group, position, tokens, nbytes, detail = entry
    known = bool(parent) and parent not in (namespace, namespace[:PARENT_HINT_BYTES])
    shown = parent.hex() if known else None
    keys = namespace.hex(), key.hex(), shown
    text = detail[:DETAIL_CHARACTERS]
    return Event(number, at, kind, tier, *keys, group, position, tokens, nbytes, text)


How = Literal["memory", "disk", "removed", "damaged"]
"""How a page left: memory's or the disk's budget had no room for it any more, somebody deleted it,
or it was found to be damaged."""
HOWS: tuple[How, ...] = get_args(How)

DEPARTURES = 32_768
"""About 5 MB when full."""


class Departure(NamedTuple):
    """How a page left, and when, in seconds since the epoch."""

    how: How
    at: float


class Departures:
    """Remembers the last pages that left, half of `most` at least. Any thread may call.

    `_lock` guards the two generations of pages, `_young` and `_old`, and `_forgetful`.
    """

    def __init__(self, most: int = DEPARTURES) -> None:
        self._half = max(1, most // 2)
        self._lock = threading.Lock()
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self._forgetful = False

    def note(self, pages: Iterable[PageId], how: How) -> None:
        """Remember that pages leave now."""
        value = time.time_ns() // 1000 * len(HOWS) + HOWS.index(how)
        with self._lock:
            for page in pages:
                self._young[_short(page)] = value
                if len(self._young) >= self._half:
                    self._forgetful = self._forgetful or bool(self._old)
                    self._old, self._young = self._young, {}

    def find(self, page: PageId) -> Departure | None:
        """Return how a page left that is not here, None for one that is not known to have been."""
        short = _short(page)
        with self._lock:
            value = self._young.get(short, self._old.get(short))
        if value is None:
            return None
        return Departure(HOWS[value % len(HOWS)], value // len(HOWS) / 1e6)

    @property
    def forgetful(self) -> bool:
        """True once pages that left have been forgotten."""
        return self._forgetful


def _short(page: PageId) -> int:
    """Return a number for a page: it is asked for by people, never restored by."""
    key, group = page
    return int.from_bytes(key[:8], "little") ^ zlib.crc32(group.encode())
