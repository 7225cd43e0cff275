"""Defaults derived from the machine: pure functions of a `Machine` and the values before them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from omlx_cache.settings.machine import DiskSpace, Machine
from omlx_cache.settings.sizes import format_size
from omlx_cache_storage.readers import within

GIB = 2**30
MEMORY_SHARE = 8
FREE_DISK_SHARE = 4
COLD_CAP = 128 * GIB
QUEUE_CAP = GIB
QUEUE_FLOOR = GIB // 4
"""A hot tier up to this size may wait for the writer as a whole: a share of it might be less than
one page, and then nothing would reach the disk."""
MIN_FREE_CAP = 10 * GIB
FREE_MEMORY_CAP = 2 * GIB
"""More would cost a large machine a part of its hot tier for nothing."""
HISTORY_CAP = 64 * 2**20
"""Sixteen million tokens: more earlier prompts than anybody compares with."""
ANSWER_SECONDS = 0.5
"""How long settings wait for a disk that may hang."""
_NO_COLD_TIER = "hot_cache_only: there is no cold tier"


class Derived(NamedTuple):
    """A derived value, and in words how it came about on this machine."""

    value: int | Path
    how: str


@dataclass(frozen=True, slots=True)
class Rule:
    """How one default is derived: for the reference in words, and as a function."""

    summary: str
    derive: Callable[[Mapping[str, Any]], Derived]


def cold_share(free: int, used: int = 0) -> int:
    """Return the cold budget for a disk with `free` bytes of which the cache has `used`."""
    return min((free + used) // FREE_DISK_SHARE, COLD_CAP)


def restore_share(machine: Machine) -> int:
    """Return what restores that were begun ahead of their sessions may take together: as much as
    the hot tier by default. A longer prefix is read when its session begins."""
    return machine.memory_bytes // MEMORY_SHARE


def snapshot_share(machine: Machine, hot_bytes: int) -> int:
    """Return what windows and snapshots of recurrent state may take that open sessions hold until
    the tiers have room for them: a quarter of the hot tier, or of its default without one."""
    return (hot_bytes or machine.memory_bytes // MEMORY_SHARE) // 4


def memory_to_leave(machine: Machine) -> int:
    """Return the bytes of memory that should stay free on a machine, and in its control group: with
    less the hot tier gives back step by step, with half of it at once."""
    return min(machine.memory_bytes // 16, FREE_MEMORY_CAP)


def history_share(machine: Machine) -> int:
    """Return the bytes for tokens of recent prompts and answers, by which `omlx-cache why` tells
    where a prompt parts from an earlier one."""
    return min(machine.memory_bytes // 1024, HISTORY_CAP)


def _cold_dir(values: Mapping[str, Any]) -> Derived:
    machine: Machine = values["machine"]
    return Derived(machine.default_cold_dir, f"the place for caches on {machine.system}")


def _hot_bytes(values: Mapping[str, Any]) -> Derived:
    machine: Machine = values["machine"]
    memory = machine.memory_bytes
    how = f"1/{MEMORY_SHARE} of {format_size(memory)}, {machine.memory_name}"
    return Derived(memory // MEMORY_SHARE, how)


def _cold_bytes(values: Mapping[str, Any]) -> Derived:
    if values["hot_cache_only"]:
        return Derived(0, _NO_COLD_TIER)
    free = _disk(values).free
    how = f"1/{FREE_DISK_SHARE} of {format_size(free)} free, at most {format_size(COLD_CAP)}"
    return Derived(cold_share(free), how)


def _min_free_bytes(values: Mapping[str, Any]) -> Derived:
    if values["hot_cache_only"]:
        return Derived(0, _NO_COLD_TIER)
    total = _disk(values).total
    how = f"5 % of a disk of {format_size(total)}, at most {format_size(MIN_FREE_CAP)}"
    return Derived(min(total // 20, MIN_FREE_CAP), how)


def _queue_bytes(values: Mapping[str, Any]) -> Derived:
    if values["hot_cache_only"]:
        return Derived(0, _NO_COLD_TIER)
    hot = _hot_or_default(values)
    if hot.size // 4 < QUEUE_FLOOR:
        how = f"{hot.how}, at most {format_size(QUEUE_FLOOR)}"
        return Derived(min(hot.size, QUEUE_FLOOR), how)
    how = f"1/4 of {hot.how}, at most {format_size(QUEUE_CAP)}"
    return Derived(min(hot.size // 4, QUEUE_CAP), how)


class _HotShare(NamedTuple):
    """What the other budgets are shares of, and its name."""

    size: int
    how: str


def _hot_or_default(values: Mapping[str, Any]) -> _HotShare:
    """Return the hot tier's budget; without a hot tier, what it would be by default."""
    given: int = values["hot_bytes"]
    if given:
        return _HotShare(given, "hot_bytes")
    machine: Machine = values["machine"]
    return _HotShare(machine.memory_bytes // MEMORY_SHARE, "the default hot_bytes")


def _disk(values: Mapping[str, Any]) -> DiskSpace:
    """Return the space of the cold directory's disk; of the root's while that one hangs."""
    machine: Machine = values["machine"]
    place: Path = values["cold_dir"]
    ask = partial(machine.disk, place)
    found = within(ask, "omlx-cache-settings", ANSWER_SECONDS, None)
    return found or machine.disk(Path(place.anchor))


RULES = {
    "cold_dir": Rule(
        "`~/Library/Caches/omlx-cache` on macOS; on Linux `$XDG_CACHE_HOME/omlx-cache`, "
        "or `~/.cache/omlx-cache`",
        _cold_dir,
    ),
    "hot_bytes": Rule(
        "one eighth of physical memory, or of the control group's limit where that is lower",
        _hot_bytes,
    ),
    "cold_bytes": Rule(
        "a quarter of what is free on the cold directory's disk (what the cache holds already "
        "counts as free), at most 128 GiB",
        _cold_bytes,
    ),
    "min_free_bytes": Rule("5 % of the cold directory's disk, at most 10 GiB", _min_free_bytes),
    "queue_bytes": Rule(
        "a quarter of `hot_bytes`, or of its default where that is 0; at least 256 MiB or all of "
        "it, at most 1 GiB",
        _queue_bytes,
    ),
}
