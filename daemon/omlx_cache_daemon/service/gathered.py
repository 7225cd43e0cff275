"""Events of several processes as one sequence: each process numbers its own, and so does this."""

import os
import threading
import time
from collections import deque
from collections.abc import Collection

from omlx_cache.status.documents import Document
from omlx_cache_storage.events import OTHER_PROCESS

MOST = 10_000


class Gathered:
    """A bounded ring of events with numbers of its own. Any thread may call; `_lock` guards
    everything."""

    def __init__(self, most: int = MOST) -> None:
        self._lock = threading.Lock()
        self._events: deque[tuple[int, Document]] = deque(maxlen=most)
        self._count = 0
        self._dropped = 0
        self._cursors: dict[str, int] = {}
        self._began: dict[str, object] = {}
        self.began = time.time()

    def cursors(self) -> dict[str, int]:
        """Return up to which number each process was heard."""
        with self._lock:
            return dict(self._cursors)

    def keep(self, sources: Collection[str]) -> None:
        """Forget how far others than these were heard: they have ended."""
        with self._lock:
            for gone in self._cursors.keys() - sources:
                del self._cursors[gone]
            for gone in self._began.keys() - sources:
                del self._began[gone]

    def add(self, source: str, pid: object, reply: object) -> None:
        """Take what a process answered; what was heard from it already is passed over."""
        if not isinstance(reply, dict):
            return
        found, upto = reply.get("events"), reply.get("upto")
        if not isinstance(found, list) or not isinstance(upto, int):
            return
        with self._lock:
            heard = self._cursors.get(source)
            if heard is not None and self._began.get(source) != reply.get("began"):
                # Its numbers begin again: what it was asked for was beyond them.
                del self._cursors[source]
                return
            if heard is not None and upto <= heard:
                return
            dropped = reply.get("dropped")
            self._dropped += dropped if heard is not None and isinstance(dropped, int) else 0
            self._cursors[source], self._began[source] = upto, reply.get("began")
            for event in found:
                if isinstance(event, dict) and self._is_news(event, heard):
                    self._count += 1
                    own = {**event, "number": self._count, "pid": pid or os.getpid()}
                    self._events.append((self._count, own))

    @staticmethod
    def _is_news(event: Document, heard: int | None) -> bool:
        """False for what was heard, and for what another process tells itself."""
        number = event.get("number")
        known = isinstance(number, int) and heard is not None and number <= heard
        return not known and event.get("detail") != OTHER_PROCESS

    def document(self, after: int | None, limit: int) -> Document:
        """Return the oldest `limit` events beyond a number, or the latest ones without it."""
        with self._lock:
            events = list(self._events)
            first = events[0][0] if events else self._count + 1
            dropped = self._dropped
            if after is not None and after + 1 < first:
                dropped += first - after - 1
            if after is None:
                chosen = events[-limit:]
            else:
                chosen = [pair for pair in events if pair[0] > after][:limit]
            upto = chosen[-1][0] if chosen else max(after or 0, self._count)
            return {
                "events": [event for _, event in chosen],
                "upto": upto,
                "dropped": dropped,
                "began": self.began,
            }
