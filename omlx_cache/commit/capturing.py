"""When an open session copies what will not last: window tokens, and state at wanted positions."""

from collections.abc import Collection

from omlx_cache import reasons
from omlx_cache.adapters.base import GroupSpec, TokenRange, UnsupportedCache
from omlx_cache.commit.capture import copy_tokens, phases_of, snapshot_page
from omlx_cache.commit.staging import Segment, Staging
from omlx_cache.identity.namespace import Namespace
from omlx_cache.pages.layout import Layout
from omlx_cache_storage.keys import KeyChain
from omlx_cache_storage.stats import Counters


class Capturer:
    """Fills a session's staging. Mutable: `_reached`; used on the model's thread only.

    `start` tokens were restored, so that they need not be captured.
    """

    def __init__(
        self,
        staging: Staging,
        counters: Counters,
        namespace: Namespace,
        chain: KeyChain,
        start: int,
    ) -> None:
        self._staging = staging
        self._counters = counters
        self._namespace = namespace
        self._chain = chain
        self._start = start
        self._reached: dict[GroupSpec, int] = {}

    def capture(self, layout: Layout, live: int, wanted: Collection[int]) -> None:
        """Copy what a cache at `live` tokens may lose: window tokens not captured yet, and state
        when that is a wanted position. Evaluates the arrays it copies."""
        position = min(live, len(self._chain))
        for group in layout.groups:
            if group.kind == "window":
                self._windows(layout, group, position, exact=live == position)
            elif group.kind == "state" and live == position and position in wanted:
                self._state(layout, group, position)

    def due(self, layout: Layout) -> bool:
        """True where a window page ends, and when a window would lose tokens within a block.

        False for a cache that is not used (a batch has its tokens) or cannot be read.
        """
        try:
            if layout.is_empty():
                return False
        except UnsupportedCache:
            return False
        length, block = len(self._chain), self._chain.block_size
        for group in layout.groups:
            if group.kind == "window":
                stride = max(1, min(block, group.window - group.keep))
                if length % block == 0 or length - self._reached.get(group, self._start) >= stride:
                    return True
        return False

    def _windows(self, layout: Layout, group: GroupSpec, position: int, *, exact: bool) -> None:
        last = self._reached.get(group, self._start)
        if position < last:
            self._staging.forget_after(position)
            last = position
        if position > last:
            span, source = copy_tokens(layout, group, TokenRange(last, position))
            phase = phases_of(layout, group) if exact else ""
            segment = Segment(span.start, span.stop, source, phase)
            if len(span) and not self._staging.add_segment(group.name, segment):
                self._counters.skip(reasons.SNAPSHOT_BUDGET)
        self._reached[group] = position

    def _state(self, layout: Layout, group: GroupSpec, position: int) -> None:
        if self._staging.has_snapshot(position):
            return
        page = snapshot_page(layout, self._namespace, self._chain, group, position)
        if page is not None and not self._staging.add_snapshot(page):
            self._counters.skip(reasons.SNAPSHOT_BUDGET)
