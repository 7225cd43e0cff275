"""How much memory the system has left, as the platform tells it; cheap enough for each second."""

import ctypes
import sys
from collections.abc import Callable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import ClassVar, NamedTuple

from omlx_cache.settings.machine import memory_groups, read_limit


class Level(IntEnum):
    """How short memory is; the names are those of macOS."""

    NORMAL = 0
    WARN = 1
    CRITICAL = 2

    @property
    def word(self) -> str:
        return self.name.lower()


class MemoryFigures(NamedTuple):
    """What the platform says: bytes that may still be taken, the share of the last ten seconds in
    which every task waited for memory, and its own verdict. None for what it does not tell."""

    free_bytes: int | None = None
    stalled: float = 0.0
    verdict: Level | None = None


STALLED = 0.1
"""A tenth of the time spent waiting for memory is felt by everybody on the machine."""


def level_of(figures: MemoryFigures, wanted_bytes: int) -> Level:
    """Return how short memory is when `wanted_bytes` of it should stay free."""
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
    """Return what reads this platform's figures; it raises nothing."""
    return Darwin() if sys.platform == "darwin" else Linux()


class Linux:
    """MemAvailable, the room in each control group above this process, and the stalls (PSI).

    Which groups those are is looked up once.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._meminfo = str(root / "proc/meminfo")
        self._pressure = str(root / "proc/pressure/memory")
        self._groups = [str(path) for path in memory_groups(root)]

    def __call__(self) -> MemoryFigures:
        rooms = [_fields(self._meminfo).get("MemAvailable"), *map(_room, self._groups)]
        free = min((room for room in rooms if room is not None), default=None)
        return MemoryFigures(free, _stalled(self._pressure))


class Darwin:
    """The kernel's own level: what an application is told through a dispatch source."""

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


def _room(limit_file: str) -> int | None:
    """Return what a control group may still take: file pages that can be dropped are not taken."""
    limit = read_limit(Path(limit_file))
    directory = limit_file.rpartition("/")[0]
    first = limit_file.endswith("memory.limit_in_bytes")
    used = _number(f"{directory}/{'memory.usage_in_bytes' if first else 'memory.current'}")
    if limit is None or used is None:
        return None
    counts = _fields(f"{directory}/memory.stat", 1)
    prefix = "total_" if first else ""
    dropped = counts.get(f"{prefix}inactive_file", 0) + counts.get(f"{prefix}active_file", 0) // 2
    return max(0, limit - max(0, used - dropped))


def _stalled(path: str) -> float:
    for line in _lines(path):
        kind, _, rest = line.partition(" ")
        values = dict(item.split("=", 1) for item in rest.split() if "=" in item)
        if kind == "full" and values.get("avg10", "").replace(".", "", 1).isdigit():
            return float(values["avg10"]) / 100
    return 0.0


def _fields(path: str, unit: int = 1024) -> dict[str, int]:
    """Return the numbers of a file of `name number` lines, in bytes."""
    found = {}
    for line in _lines(path):
        words = line.replace(":", " ").split()
        if len(words) > 1 and words[1].isdigit():
            found[words[0]] = int(words[1]) * unit
    return found


def _number(path: str) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None


def _lines(path: str) -> Iterator[str]:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            yield from file
    except OSError:
        return
