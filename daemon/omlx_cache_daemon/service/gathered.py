"""Events of several processes as one sequence: each process numbers its own, and so does this."""

import threading
import time
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any

from omlx_cache_storage.events import OTHER_PROCESS

MOST = 10_000


class Gathered:
    """A bounded ring of events with numbers of its own. Any thread may call; `_lock` guards
    everything."""

    def __init__(self, most: int = MOST) -> None:
        self._lock = threading.Lock()
        self._events: deque[dict[str, Any]] = deque(maxlen=most)
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

    def add(self, source: str, pid: object, reply: Mapping[str, Any]) -> None:
        """Take what a process answered; what was heard from it already is passed over."""
        upto, began = reply["upto"], reply["began"]
        with self._lock:
            heard = self._cursors.get(source)
            if heard is not None and self._began[source] != began:
                # Its numbers begin again: what it was asked for was beyond them.
                del self._cursors[source]
                return
            if heard is not None and upto <= heard:
                return
            self._dropped += 0 if heard is None else reply["dropped"]
            self._cursors[source], self._began[source] = upto, began
            for event in reply["events"]:
                # What another process did it tells itself.
                if event["number"] > (heard or 0) and event["detail"] != OTHER_PROCESS:
                    self._count += 1
                    self._events.append({**event, "number": self._count, "pid": pid})

    def document(self, after: int | None, limit: int) -> Mapping[str, Any]:
        """Return the oldest `limit` events beyond a number, or the latest ones without it."""
        with self._lock:
            events = list(self._events)
            first = events[0]["number"] if events else self._count + 1
            dropped = self._dropped
            if after is not None and after + 1 < first:
                dropped += first - after - 1
            if after is None:
                chosen = events[-limit:]
            else:
                chosen = [event for event in events if event["number"] > after][:limit]
            upto = chosen[-1]["number"] if chosen else max(after or 0, self._count)
            return {
                "events": chosen,
                "upto": upto,
                "dropped": dropped,
                "began": self.began,
            }
