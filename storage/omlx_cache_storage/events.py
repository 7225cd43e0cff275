"""A bounded log of recent events of pages and requests, with their durations; it has no tokens and
no text of prompts. Beside it: the pages that a store has lost, which tell "evicted" from "never
stored"."""

import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable
from functools import partial
from typing import Literal, NamedTuple, get_args

from omlx_cache_storage.calls import turn, uninterrupted, wait_in_turns
from omlx_cache_storage.format.names import PARENT_HINT_BYTES, StoredPage
from omlx_cache_storage.measures import Histograms
from omlx_cache_storage.page import PAGED, PageId, PageMeta
from omlx_cache_storage.stats import KINDS, Kind

EventTier = Literal["hot", "cold", "remote", ""]
"""Empty for a request, which concerns no one tier."""

REMEMBERED = 16_384
"""About 6 MB when full: some seconds of the fastest disk."""
DETAIL_CHARACTERS = 200
_NAMESPACES = 4096
OTHER_PROCESS = "other process"


class Event(NamedTuple):
    """One thing that happened, `at` in seconds since the epoch; keys are empty where there is none.

    A page ends at `position` and holds the `tokens` before it. `parent` is the key of the block
    before, or the namespace for the first of a chain; 8 bytes of it where only a file's name is
    known. Of a request, `position` is the length of its prompt, `tokens` the restored ones, and
    `detail` says which tier gave them.
    """

    number: int
    at: float
    kind: Kind
    tier: EventTier
    namespace: bytes
    key: bytes
    parent: bytes
    group: str
    position: int
    tokens: int
    nbytes: int
    detail: str

    def to_dict(self) -> dict[str, object]:
        return {
            **self._asdict(),
            "namespace": self.namespace.hex(),
            "key": self.key.hex(),
            "parent": None
            if self.parent in (b"", self.namespace, self.namespace[:PARENT_HINT_BYTES])
            else self.parent.hex(),
        }


class EventPage(NamedTuple):
    """A part of a log: `upto` is what `after` is next, `dropped` how many events before it were
    forgotten unread. `began` tells one log from another: when it changes, the numbers begin
    again."""

    upto: int
    events: tuple[Event, ...]
    dropped: int
    began: float


class EventLog:
    """Remembers the latest `capacity` events; one of 0 remembers and costs nothing. Any thread may
    call; noting takes about a microsecond, and waits for no reader. `timings` counts durations,
    whatever is remembered.

    `_lock` guards all; `_awaited`: a reader may wait for the next event. Tiers note events under
    locks of their own, so that the order is theirs. A finalizer and a handler of a signal note
    nothing.
    """

    def __init__(self, capacity: int = REMEMBERED) -> None:
        self.began = time.time()
        self.timings = Histograms()
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._ring: deque[Event] = deque(maxlen=capacity)
        self._count, self._awaited = 0, False
        self._counts = Counter[str](dict.fromkeys(KINDS, 0))
        self._paged: dict[bytes, None] = {}

    def note_page(self, kind: Kind, tier: EventTier, meta: PageMeta, detail: str = "") -> None:
        key, parent, sizes = meta.key, meta.parent, (meta.position, meta.held, meta.nbytes)
        self._note(kind, tier, meta.namespace, key, parent, meta.group, *sizes, detail)

    def note_file(
        self, kind: Kind, stored: StoredPage, detail: str = "", parent: bytes | None = None
    ) -> None:
        (key, group), hint, position, held, _ = stored.name
        known = hint if parent is None else parent
        sizes = position, held, stored.nbytes
        self._note(kind, "cold", stored.namespace, key, known, group, *sizes, detail)

    def note_tier(
        self, kind: Kind, tier: EventTier, namespace: bytes = b"", detail: str = ""
    ) -> None:
        self._note(kind, tier, namespace, b"", b"", "", 0, 0, 0, detail)

    def note_request(
        self, namespace: str, prompt_tokens: int, restored: int, cold: int, remote: int = 0
    ) -> None:
        if restored:
            detail = f"{restored - cold - remote} hot, {cold} cold"
            detail += f", {remote} remote" if remote else ""
            digest = bytes.fromhex(namespace)
            self._note("restored", "", digest, b"", b"", "", prompt_tokens, restored, 0, detail)

    def _note(
        self, kind: Kind, tier: EventTier, namespace: bytes, key: bytes, parent: bytes, group: str,
        position: int, tokens: int, nbytes: int, detail: str,
    ) -> None:  # fmt: skip
        if not self._ring.maxlen:
            return
        with self._lock:
            self._count += 1
            # `Event(...)` takes a third of a microsecond longer.
            self._ring.append(Event._make((
                self._count, time.time(), kind, tier, namespace, key, parent, group, position,
                tokens, nbytes, detail[:DETAIL_CHARACTERS],
            )))  # fmt: skip
            self._counts[kind] += 1
            if group == PAGED and namespace not in self._paged:
                if len(self._paged) >= _NAMESPACES:
                    del self._paged[next(iter(self._paged))]
                self._paged[namespace] = None
            if self._awaited:
                self._awaited = False
                self._news.notify_all()

    @uninterrupted
    def page(
        self, after: int | None, limit: int, kinds: Collection[str] | None = None
    ) -> EventPage:
        """Return the oldest `limit` events beyond the number `after`, or the latest ones without
        it; of `kinds` only, where they are given."""
        with self._lock:
            count, known = self._count, list(self._ring)
        # A number that was never reached is another log's.
        asked = 0 if after is None or after > count else after
        oldest = count - len(known)
        news = known[max(0, asked - oldest) :]
        found = news if kinds is None else [one for one in news if one.kind in kinds]
        if after is None:
            return EventPage(count, tuple(found[-limit:]), 0, self.began)
        upto = found[limit - 1].number if len(found) > limit else count
        return EventPage(upto, tuple(found[:limit]), max(0, oldest - asked), self.began)

    def wait(self, after: int, timeout: float) -> bool:
        """Block until there is an event beyond the number `after`; False after `timeout`
        seconds."""
        with self._lock:
            self._awaited = True
        return wait_in_turns(partial(turn, self._news, lambda: self._count != after), timeout)

    @uninterrupted
    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    def paged(self) -> frozenset[bytes]:
        with self._lock:
            return frozenset(self._paged)


SILENT = EventLog(0)


How = Literal["memory", "disk", "removed", "damaged"]
"""How a page left: evicted by memory's or the disk's budget, deleted on request, or found
damaged."""
HOWS: tuple[How, ...] = get_args(How)

DEPARTURES = 32_768
"""About 5 MB when full."""


class Departure(NamedTuple):
    how: How
    at: float


class Departures:
    """Remembers the last pages that left, half of `most` at least. Any thread may call; `_lock`
    guards the two generations, in which a page stands by its hash: people ask for it, no restore
    does. `forgetful` is True once pages were forgotten."""

    def __init__(self, most: int = DEPARTURES) -> None:
        self._half = max(1, most // 2)
        self._lock = threading.Lock()
        self._young: dict[int, Departure] = {}
        self._old: dict[int, Departure] = {}
        self.forgetful = False

    def note(self, pages: Iterable[PageId], how: How) -> None:
        now = Departure(how, time.time())
        with self._lock:
            for page in pages:
                self._young[hash(page)] = now
                if len(self._young) >= self._half:
                    self.forgetful |= bool(self._old)
                    self._old, self._young = self._young, {}

    def find(self, page: PageId) -> Departure | None:
        """Return how a page left, None for one that is not known to have been here."""
        with self._lock:
            return self._young.get(hash(page)) or self._old.get(hash(page))
