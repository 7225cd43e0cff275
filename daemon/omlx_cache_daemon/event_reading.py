"""Reading the logs of events of one store or several, so that nothing is seen twice and what was
missed is said."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

from omlx_cache.control.errors import ControlError
from omlx_cache_daemon.client import Client
from omlx_cache_daemon.errors import CommandError, NobodyThere
from omlx_cache_daemon.replies import Map, as_map, as_maps, count_of

AT_A_TIME = 1000


class EventRows(NamedTuple):
    """What became known: events, or batches for a router, each with its `pid`, and how many events
    of which process were missed."""

    rows: list[Map]
    missed: dict[int, int]

    def and_(self, other: "EventRows") -> "EventRows":
        missed = Counter(self.missed) + Counter(other.missed)
        return EventRows([*self.rows, *other.rows], dict(missed))


class EventReader:
    """Reads one store's events. Mutable: `_after`, up to which number all are known, None before
    the first question, and `_began`, which tells the store's log from another."""

    def __init__(self, client: Client, *, kinds: Sequence[str] | None, kv: bool) -> None:
        self._client = client
        self._arguments: dict[str, object] = {"kv": True} if kv else {}
        self._rows = "batches" if kv else "events"
        if kinds:
            self._arguments["kinds"] = list(kinds)
        self._after: int | None = None
        self._began: object = None

    def latest(self, count: int) -> EventRows:
        """Return the latest events; what comes next is `news`. Raises NobodyThere, CommandError."""
        read = self._ask(None, max(1, count))
        return read if count else EventRows([], {})

    def news(self) -> EventRows:
        """Return what has happened since, at first all that the store remembers, told of what it
        has forgotten; raises NobodyThere, CommandError."""
        read = EventRows([], {})
        while True:
            before = self._after or 0
            read = read.and_(self._ask(before, AT_A_TIME))
            if self._after == before:
                return read

    def _ask(self, after: int | None, limit: int) -> EventRows:
        asked = self._arguments if after is None else {**self._arguments, "after": after}
        try:
            reply = as_map(self._client.call("events", limit=limit, **asked))
        except ControlError as error:
            raise CommandError(f"{self._client.path}: {error}") from error
        began, self._began = self._began, reply.get("began")
        if after and began not in (None, self._began):
            # Another store has taken the place of the one before: its numbers begin again.
            return self._ask(0, limit)
        self._after = count_of(reply, "upto")
        pid, dropped = count_of(reply, "pid"), count_of(reply, "dropped")
        rows = [{"pid": pid, **row} for row in as_maps(reply.get(self._rows, []))]
        return EventRows(rows, {pid: dropped} if dropped else {})


def in_order(rows: Iterable[Map], name: str) -> list[Map]:
    """Return rows of several stores by the time that they name."""
    return sorted(rows, key=itemgetter(name))


class ManyReaders:
    """Reads several stores, which come and go. Mutable: `_readers`, by socket, `_here`, those of
    them that answered the last time, and `trouble`, why the last one that went did not."""

    def __init__(self) -> None:
        self._readers: dict[str, EventReader] = {}
        self._here: set[str] = set()
        self.trouble: NobodyThere | None = None

    def begin(self, path: str, reader: EventReader, latest: int | None) -> EventRows:
        """Read the latest events of a store, or with None all that it remembers; of one that was
        there before, what is new. Follows it from there on. Raises CommandError."""
        known = self._readers.setdefault(path, reader)
        self._here.add(path)
        if known is reader and latest is not None:
            return self._of(path, lambda: reader.latest(latest))
        return self._of(path, known.news)

    def news(self) -> EventRows:
        """Return what has happened anywhere; raises CommandError."""
        read = EventRows([], {})
        for path in sorted(self._here):
            read = read.and_(self._of(path, self._readers[path].news))
        return read

    def is_here(self, path: str) -> bool:
        """True for a store that is followed."""
        return path in self._here

    @property
    def any(self) -> bool:
        """True while a store answers."""
        return bool(self._here)

    def _of(self, path: str, ask: Callable[[], EventRows]) -> EventRows:
        try:
            return ask()
        except NobodyThere as error:
            self._here.discard(path)
            self.trouble = error
            return EventRows([], {})
