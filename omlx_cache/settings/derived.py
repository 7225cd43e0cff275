"""Defaults derived from the machine: pure functions of a `Machine` and the values before them."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from omlx_cache.settings.machine import Machine
from omlx_cache.settings.sizes import format_size
from omlx_cache_storage.io_threads import within

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
DERIVED: Final = {
    "cold_dir": "`~/Library/Caches/omlx-cache` on macOS; on Linux `$XDG_CACHE_HOME/omlx-cache`, "
    "or `~/.cache/omlx-cache`",
    "hot_bytes": "one eighth of physical memory, or of the control group's limit where that is "
    "lower",
    "cold_bytes": "a quarter of what is free on the cold directory's disk (what the cache holds "
    "already counts as free), at most 128 GiB; as much as the cache holds where that is more",
    "min_free_bytes": "5 % of the cold directory's disk, at most 10 GiB",
    "queue_bytes": "a quarter of `hot_bytes`, or of its default where that is 0; at least 256 MiB "
    "or all of it, at most 1 GiB",
}
"""The settings whose defaults are derived, and how, in words for the reference."""


class Derived(NamedTuple):
    value: int | Path
    how: str


def cold_share(free: int, used: int = 0) -> int:
    return min((free + used) // FREE_DISK_SHARE, COLD_CAP)


def free_share(total: int) -> int:
    return min(total // 20, MIN_FREE_CAP)


def restore_share(machine: Machine) -> int:
    """Return what restores that were begun ahead may take; a longer prefix is read when its session
    begins."""
    return machine.memory_bytes // MEMORY_SHARE


def snapshot_share(machine: Machine, hot_bytes: int) -> int:
    """Return what windows and snapshots may take that open sessions hold until the tiers have room
    for them: a quarter of the hot tier, or of its default without one."""
    return (hot_bytes or machine.memory_bytes // MEMORY_SHARE) // 4


def memory_to_leave(machine: Machine) -> int:
    """Return the bytes of memory that should stay free: with less the hot tier gives back step by
    step, with half of it at once."""
    return min(machine.memory_bytes // 16, FREE_MEMORY_CAP)


def history_share(machine: Machine) -> int:
    """Return the bytes for tokens of recent prompts, with which `omlx-cache why` compares."""
    return min(machine.memory_bytes // 1024, HISTORY_CAP)


def derive(name: str, values: Mapping[str, Any]) -> Derived:
    """Return a default, from the settings before it; raises KeyError where one of them is missing.
    Waits `ANSWER_SECONDS` at most for a disk that hangs, then goes by the root's."""
    machine: Machine = values["machine"]
    default_hot = machine.memory_bytes // MEMORY_SHARE
    if name == "cold_dir":
        return Derived(machine.default_cold_dir, f"the place for caches on {machine.system}")
    if name == "hot_bytes":
        memory = f"{format_size(machine.memory_bytes)}, {machine.memory_name}"
        return Derived(default_hot, f"1/{MEMORY_SHARE} of {memory}")
    if values["hot_cache_only"]:
        return Derived(0, "hot_cache_only: there is no cold tier")
    if name == "queue_bytes":
        hot = values["hot_bytes"] or default_hot
        how = "hot_bytes" if values["hot_bytes"] else "the default hot_bytes"
        if hot // 4 < QUEUE_FLOOR:
            return Derived(min(hot, QUEUE_FLOOR), f"{how}, at most {format_size(QUEUE_FLOOR)}")
        return Derived(min(hot // 4, QUEUE_CAP), f"1/4 of {how}, at most {format_size(QUEUE_CAP)}")
    ask = partial(machine.disk, values["cold_dir"])
    disk = within(ask, "omlx-cache-settings", ANSWER_SECONDS, None)
    disk = disk or machine.disk(Path(values["cold_dir"].anchor))
    if name == "cold_bytes":
        how = f"1/{FREE_DISK_SHARE} of {format_size(disk.free)} free"
        return Derived(cold_share(disk.free), f"{how}, at most {format_size(COLD_CAP)}")
    how = f"5 % of a disk of {format_size(disk.total)}, at most {format_size(MIN_FREE_CAP)}"
    return Derived(free_share(disk.total), how)
