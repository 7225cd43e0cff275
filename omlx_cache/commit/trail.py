"""The last window of tokens of an answer in the making: what a ring is about to overwrite.

After a single-token step a ring holds exactly its window. A restore to one token before the end
of the sequence, which is what an exact repeat asks for, needs one token more.
"""

import sys
from collections.abc import Sequence

from omlx_cache.adapters.base import GroupSpec, TokenRange
from omlx_cache.commit.capture import phases_of
from omlx_cache.commit.staging import Segment, Staging
from omlx_cache.pages.cut import Cutter
from omlx_cache.pages.geometry import Source, read_source
from omlx_cache.pages.layout import Layout


class WindowTrail:
    """Copies each window's tokens once, in small segments, and keeps those of the last window; and
    the order that its rings had where it looked.

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
            self._phases[group] = {**kept, position: phases_of(layout, group)}
        self._reached = position

    def phase(self, group: GroupSpec, position: int) -> str:
        """Return the rings' order at a position, as a page carries it; "" where it was not seen."""
        return self._phases[group].get(position, "")

    def sources(self, group: GroupSpec) -> list[Source]:
        """Return the copies of a group, oldest first."""
        return [segment.source for segment in self._staging.segments(group.name)]

    def _copy(self, layout: Layout, group: GroupSpec, span: TokenRange) -> None:
        cutter = Cutter([read_source(layout.of(group))])
        held = TokenRange(cutter.geometry.earliest(span), span.stop)
        cut = cutter.geometry.tokens(held) if len(held) else None
        if cut is None or not self._staging.reserve(cut.nbytes):
            return
        segment = Segment(held.start, held.stop, cutter.copies(held, cut))
        self._staging.add_segment(group.name, segment)
