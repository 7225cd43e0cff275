"""Giving memory back while the system is short of it, and taking it again when that is over."""

import ctypes
import logging
import time
from collections.abc import Callable

import mlx.core as mx

from omlx_cache.settings.sizes import format_size
from omlx_cache.upkeep.figures import Level, MemoryFigures, level_of
from omlx_cache_storage.stats import MemoryUsage
from omlx_cache_storage.tiers import Tiers

_log = logging.getLogger(__name__)

STEPS = 8
"""The hot tier is given back, and taken again, in so many steps; at `warn` the last one stays."""
GROW_SECONDS = 10.0
"""How long memory must have been plentiful before a step is taken again."""


class Relief:
    """Lowers a store's hot tier step by step at `warn`, at once at `critical`, and lets it grow
    again slowly. `hot_bytes` stays the ceiling.

    One thread calls `step`; any may read `usage`, what was done so far. With `wanted_bytes` 0
    nothing is ever given back.
    """

    def __init__(
        self, tiers: Tiers, wanted_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.wanted_bytes = wanted_bytes
        self.usage = MemoryUsage(Level.NORMAL.word, None, 0, 0)
        self._tiers = tiers
        self._clock = clock
        self._level = Level.NORMAL
        self._plentiful_since = clock()

    def step(self, figures: MemoryFigures) -> int:
        """Act on what the platform says now; return the bytes that were given back."""
        if not self.wanted_bytes:
            return 0
        level = level_of(figures, self.wanted_bytes)
        if level is Level.NORMAL:
            self._note(level, figures, 0)
            self._grow(figures)
            return 0
        hot = self._tiers.hot_usage()
        step = max(1, hot.limit_bytes // STEPS)
        free = figures.free_bytes
        short = step if free is None else max(step, self.wanted_bytes - free)
        goal = (
            0 if level is Level.CRITICAL else max(step, min(hot.nbytes, hot.allowed_bytes) - short)
        )
        given = self._tiers.restrict_hot(min(goal, hot.allowed_bytes))
        self._note(level, figures, given)
        return given

    def _note(self, level: Level, figures: MemoryFigures, given: int) -> None:
        before, self._level = self._level, level
        free, past = figures.free_bytes, self.usage
        given_back, times = past.given_back_bytes + given, past.times + (given > 0)
        self.usage = MemoryUsage(level.word, free, given_back, times)
        if level is not Level.NORMAL:
            self._plentiful_since = self._clock()
        if level > before:
            _log.warning(
                "memory is short (%s%s; %s should stay free): "
                "the hot tier gives back what it holds",
                level.word,
                "" if free is None else f", {format_size(free)} free",
                format_size(self.wanted_bytes),
            )

    def _grow(self, figures: MemoryFigures) -> None:
        """Allow one step more, when there has been room for two for a while."""
        hot = self._tiers.hot_usage()
        if hot.allowed_bytes >= hot.limit_bytes:
            return
        step, free, now = max(1, hot.limit_bytes // STEPS), figures.free_bytes, self._clock()
        if free is not None and free - self.wanted_bytes <= 2 * step:
            self._plentiful_since = now
        elif now - self._plentiful_since >= GROW_SECONDS:
            self._plentiful_since = now
            self._tiers.restrict_hot(min(hot.limit_bytes, hot.allowed_bytes + step))


def release_freed_memory() -> None:
    """Have MLX's allocator and the C library give what they keep for later to the system.

    MLX's allocators guard their caches themselves, so this may be called on any thread.
    """
    mx.clear_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
