"""Which pages a store had and has no more: what tells "evicted" from "never stored"."""

import threading
import time
import zlib
from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

from omlx_cache_storage.interrupts import uninterrupted
from omlx_cache_storage.keys import BlockKey

Page = tuple[BlockKey, str]
"""A PageId: the key and the layer group."""

How = Literal["memory", "disk", "removed", "damaged"]
"""How a page left: memory's or the disk's budget had no room for it any more, somebody deleted it,
or it was found to be damaged."""
HOWS: tuple[How, ...] = get_args(How)

REMEMBERED = 32_768
"""About 5 MB when full."""


class Departure(NamedTuple):
    """How a page left, and when, in seconds since the epoch."""

    how: How
    at: float


class Departures:
    """Remembers the last pages that left, half of `most` at least. Any thread may call.

    `_lock` guards the two generations of pages, `_young` and `_old`, and `_forgetful`.
    """

    def __init__(self, most: int = REMEMBERED) -> None:
        self._half = max(1, most // 2)
        self._lock = threading.Lock()
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self._forgetful = False

    @uninterrupted
    def note(self, pages: Iterable[Page], how: How) -> None:
        """Remember that pages leave now."""
        value = time.time_ns() // 1000 * len(HOWS) + HOWS.index(how)
        with self._lock:
            for page in pages:
                self._young[_short(page)] = value
                if len(self._young) >= self._half:
                    self._forgetful = self._forgetful or bool(self._old)
                    self._old, self._young = self._young, {}

    @uninterrupted
    def find(self, page: Page) -> Departure | None:
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


def _short(page: Page) -> int:
    """Return a number for a page: it is asked for by people, never restored by."""
    key, group = page
    return int.from_bytes(key[:8], "little") ^ zlib.crc32(group.encode())
