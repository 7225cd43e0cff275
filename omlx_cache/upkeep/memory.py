"""How short memory is, by the platform's word each second, and freeing pages of a hot tier. Imports
no MLX: `omlx-cache doctor` asks the platform, too."""

import ctypes
import logging
import re
import sys
import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import ClassVar, NamedTuple

from omlx_cache.settings.machine import memory_groups, read_limit, text_of
from omlx_cache.settings.sizes import format_size
from omlx_cache_storage.stats import MemoryUsage
from omlx_cache_storage.tiers import Tiers

_log = logging.getLogger(__name__)

STALLED = 0.1
"""A tenth of the time spent waiting for memory is felt by every user of the machine."""
STEPS = 8
"""Steps in which the hot tier shrinks, and grows again; at `warn` the last one stays."""
GROW_SECONDS = 10.0
"""How long memory must have been plentiful before a step is taken again."""


class Level(IntEnum):
    """How short memory is; the names are those of macOS."""

    NORMAL = 0
    WARN = 1
    CRITICAL = 2

    @property
    def word(self) -> str:
        return self.name.lower()


class MemoryFigures(NamedTuple):
    """The platform's figures, None for one that it does not give: bytes that may still be taken,
    the share of the last ten seconds in which every task waited for memory, and its own verdict."""

    free_bytes: int | None = None
    stalled: float = 0.0
    verdict: Level | None = None


def level_of(figures: MemoryFigures, wanted_bytes: int) -> Level:
    if figures.verdict is not None:
        return figures.verdict
    free = figures.free_bytes
    if free is None:
        return Level.NORMAL
    if free < wanted_bytes // 2:
        return Level.CRITICAL
    # Waiting alone is no sign: a group that reads many files waits for its own file cache.
    stalls = figures.stalled >= STALLED and free < 2 * wanted_bytes
    return Level.WARN if free < wanted_bytes or stalls else Level.NORMAL


def reader() -> Callable[[], MemoryFigures]:
    return Darwin() if sys.platform == "darwin" else Linux()


class Linux:
    """MemAvailable, the room in each control group above this process, and the stalls (PSI). The
    groups are looked up once."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._meminfo = root / "proc/meminfo"
        self._pressure = root / "proc/pressure/memory"
        self._groups = memory_groups(root)

    def __call__(self) -> MemoryFigures:
        rooms = [_fields(self._meminfo, 1024).get("MemAvailable"), *map(_room, self._groups)]
        free = min((room for room in rooms if room is not None), default=None)
        stalled = re.search(r"^full avg10=(\d+(?:\.\d+)?)\b", text_of(self._pressure), re.MULTILINE)
        return MemoryFigures(free, float(stalled[1]) / 100 if stalled else 0.0)


class Darwin:
    """The kernel's own level, which an application gets through a dispatch source."""

    _LEVELS: ClassVar = {1: Level.NORMAL, 2: Level.WARN, 4: Level.CRITICAL}

    def __init__(self, libc: ctypes.CDLL | None = None) -> None:
        self._libc = libc or ctypes.CDLL(None)

    def __call__(self) -> MemoryFigures:
        value, size = ctypes.c_int(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
        name = b"kern.memorystatus_vm_pressure_level"
        failed = self._libc.sysctlbyname(
            name, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)
        )
        return MemoryFigures(verdict=None if failed else self._LEVELS.get(value.value))


class Relief:
    """Lowers a store's hot tier step by step at `warn`, at once at `critical`, and lets it grow
    again slowly. `hot_bytes` stays the ceiling. One thread calls `step`; any may read `usage`, the
    count of its steps so far."""

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
        level, given = level_of(figures, self.wanted_bytes), 0
        hot, free, now = self._tiers.hot_usage(), figures.free_bytes, self._clock()
        step = max(1, hot.limit_bytes // STEPS)
        if level is not Level.NORMAL:
            self._plentiful_since = now
            short = step if free is None else max(step, self.wanted_bytes - free)
            held = min(hot.nbytes, hot.allowed_bytes)
            goal = 0 if level is Level.CRITICAL else max(step, held - short)
            given = self._tiers.restrict_hot(min(goal, hot.allowed_bytes))
        elif hot.allowed_bytes < hot.limit_bytes:
            # One step more, when there has been room for two for a while.
            if free is not None and free - self.wanted_bytes <= 2 * step:
                self._plentiful_since = now
            elif now - self._plentiful_since >= GROW_SECONDS:
                self._plentiful_since = now
                self._tiers.restrict_hot(min(hot.limit_bytes, hot.allowed_bytes + step))
        before, self._level = self._level, level
        past = self.usage
        given_back, times = past.given_back_bytes + given, past.times + (given > 0)
        self.usage = MemoryUsage(level.word, free, given_back, times)
        if level > before:
            _log.warning(
                "memory is short (%s%s; %s should stay free): "
                "the hot tier gives back what it holds",
                level.word,
                "" if free is None else f", {format_size(free)} free",
                format_size(self.wanted_bytes),
            )
        return given


def _room(limit_file: Path) -> int | None:
    """Return the bytes that a control group may still take: file pages that can be dropped are not
    taken."""
    limit, is_first = read_limit(limit_file), limit_file.name == "memory.limit_in_bytes"
    used = limit_file.with_name("memory.usage_in_bytes" if is_first else "memory.current")
    taken = text_of(used).strip()
    if limit is None or not taken.isdigit():
        return None
    counts = _fields(limit_file.with_name("memory.stat"))
    prefix = "total_" if is_first else ""
    dropped = counts.get(f"{prefix}inactive_file", 0) + counts.get(f"{prefix}active_file", 0) // 2
    return max(0, limit - max(0, int(taken) - dropped))


def _fields(path: Path, unit: int = 1) -> dict[str, int]:
    lines = re.findall(r"^([^\s:]+)[ \t:]+([0-9]+)\b", text_of(path), re.MULTILINE)
    return {name: int(number) * unit for name, number in lines}
