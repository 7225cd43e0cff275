"""What an open session holds beside the live cache: pages that the tiers had no room for yet, and
the window tokens that a ring is about to overwrite.

Neither can be cut later, when the live cache has moved on. They outlive neither commit nor the
session: leaving, aborting from another thread, or losing the last reference to the session frees
them, and the counters in `stats` with them.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from omlx_cache.adapters.base import GroupSpec, TokenRange
from omlx_cache.pages.cut import Cutter, Source, read_source
from omlx_cache.pages.layout import Layout
from omlx_cache_storage.page import Page
from omlx_cache_storage.stats import Counters


class Segment(NamedTuple):
    """Owned copies of a window group's tokens [start, stop)."""

    group: str
    start: int
    stop: int
    source: Source


Staged = Page | Segment


def _nbytes(staged: Staged) -> int:
    return staged.meta.nbytes if isinstance(staged, Page) else staged.source.nbytes


class Staging:
    """`_lock` guards `closed` and `_staged`. `release` may come from any thread, but from no
    finalizer: that one hands it to `Counters.defer`."""

    def __init__(self, counters: Counters, limit_bytes: int) -> None:
        self._counters = counters
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self.closed = False
        self._staged: list[Staged] = []

    def reserve(self, nbytes: int) -> bool:
        """Reserve bytes for what is about to be made; False when the budget is spent. `add` must
        follow, or `give_back`."""
        return not self.closed and self._counters.take_snapshot(nbytes, self._limit)

    def give_back(self, nbytes: int) -> None:
        """Undo `reserve`."""
        self._counters.drop_snapshot(nbytes)

    def add(self, staged: Staged) -> None:
        """Stage what bytes are reserved for; what comes after `release` is dropped."""
        with self._lock:
            if not self.closed:
                self._staged.append(staged)
                return
        self.give_back(_nbytes(staged))

    def take_pages(self) -> list[Page]:
        """Hand the pages over, shallow positions first."""
        taken = self._take(lambda staged: isinstance(staged, Page))
        pages = (page for page in taken if isinstance(page, Page))
        return sorted(pages, key=lambda page: page.meta.position)

    def segments(self, group: str) -> list[Segment]:
        """Return a group's segments, oldest first."""
        with self._lock:
            segments = (staged for staged in self._staged if isinstance(staged, Segment))
            return [segment for segment in segments if segment.group == group]

    def trim_segments(self, group: str, start: int, stop: int) -> None:
        """Drop a group's segments that end at or before `start`, or after `stop`."""

        def is_past(staged: Staged) -> bool:
            if isinstance(staged, Page) or staged.group != group:
                return False
            return not start < staged.stop <= stop

        self._take(is_past)

    def release(self) -> None:
        """Free everything; what is added later is dropped."""
        with self._lock:
            self.closed = True
        self._take(lambda staged: True)

    def _take(self, leaves: Callable[[Staged], bool]) -> list[Staged]:
        with self._lock:
            taken = [staged for staged in self._staged if leaves(staged)]
            self._staged = [staged for staged in self._staged if not leaves(staged)]
        for staged in taken:
            self.give_back(_nbytes(staged))
        return taken


class WindowTrail:
    """Copies each window's tokens once, in small segments, and keeps those of the last window; and
    the order that its rings had where it looked.

    After a single-token step a ring holds exactly its window. A restore to one token before the end
    of the sequence, which an exact repeat needs, needs one token more.

    Mutable by the model's thread: `_reached`, `_phases`. The segments are the staging's.
    """

    def __init__(self, groups: Sequence[GroupSpec], staging: Staging, start: int) -> None:
        self._groups = groups
        self._staging = staging
        self._reached = start
        self._phases: dict[GroupSpec, dict[int, str]] = {group: {} for group in groups}

    def due_at(self, block_size: int) -> int:
        """Return the position at which a window is about to lose tokens that were not copied."""
        strides = [max(1, min(block_size, group.window - group.keep)) for group in self._groups]
        return self._reached + min(strides, default=sys.maxsize)

    def follow(self, layout: Layout, position: int) -> None:
        """Copy what windows that are at `position` gained since the last call; evaluates that."""
        for group in self._groups:
            first = max(0, position - (group.window - group.keep) - 1)
            self._staging.trim_segments(group.name, first, position)
            segments = self._staging.segments(group.name)
            last = max(first, segments[-1].stop) if segments else first
            if position > last:
                self._copy(layout, group, TokenRange(last, position))
            kept = {at: p for at, p in self._phases[group].items() if first < at < position}
            self._phases[group] = {**kept, position: layout.phases(group)}
        self._reached = position

    def phase(self, group: GroupSpec, position: int) -> str:
        """Return the rings' order at a position, as a page carries it; "" where it was not seen."""
        return self._phases[group].get(position, "")

    def sources(self, group: GroupSpec) -> list[Source]:
        """Return the copies of a group, oldest first."""
        return [segment.source for segment in self._staging.segments(group.name)]

    def _copy(self, layout: Layout, group: GroupSpec, span: TokenRange) -> None:
        cutter = Cutter([read_source(layout.of(group))])
        held = TokenRange(cutter.earliest(span), span.stop)
        cut = cutter.tokens(held) if len(held) else None
        if cut is None or not self._staging.reserve(cut.nbytes):
            return
        copies = cutter.copies(held, cut)
        self._staging.add(Segment(group.name, held.start, held.stop, copies))
