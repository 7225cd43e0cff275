"""A process with a full hot tier; run by a test that makes memory short around it.

`hungry.py FILE` joins the control group whose process list is FILE, then takes memory of its own,
a little whenever there is some, until it has as much as the group has room for beside an empty
hot tier.
"""

import os
import sys
import threading
from collections.abc import Callable

from kit.storage import Story
from kit.units import MIB
from omlx_cache import BlockStore, CacheSettings
from omlx_cache.arrays.mlxio import allocate_payload
from omlx_cache.upkeep.memory import reader
from omlx_cache_storage.page import Page

HOT_MIB = 192
OWN_MIB = 192
WAIT_SECONDS = 0.05


def say(*words: object) -> None:
    print(*words, flush=True)


def resident() -> int:
    """Return this process's resident memory in MiB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // MIB


def fill(store: BlockStore) -> None:
    """Fill the hot tier with live arrays of 1 MiB, all of whose bytes were written."""
    story = Story(nbytes=MIB, blocks=HOT_MIB)
    for number in range(1, HOT_MIB + 1):
        room = store.admit(MIB)
        assert room
        payload = allocate_payload(MIB)
        memoryview(payload).cast("B")[:] = bytes([number % 256]) * MIB
        store.put(Page(story.meta(number), payload), room)


def wait(done: Callable[[], bool], seconds: float = 60) -> None:
    pause = threading.Event()
    for _ in range(int(seconds / WAIT_SECONDS)):
        if done():
            return
        pause.wait(WAIT_SECONDS)
    raise AssertionError("waited in vain")


def open_store(free: int) -> BlockStore:
    store = BlockStore(CacheSettings(hot_cache_only=True, hot_bytes=HOT_MIB * MIB, socket="off"))
    store._relief.wanted_bytes = free
    return store


def group(processes: str) -> None:
    with open(processes, "w") as file:
        file.write(str(os.getpid()))
    with open_store(48 * MIB) as store:
        fill(store)
        say("full", resident())
        own: list[bytearray] = []
        for _ in range(OWN_MIB // 8):
            wait(lambda: (reader()().free_bytes or 0) > 16 * MIB)
            own.append(bytearray(b"x" * (8 * MIB)))
        memory = store.stats().memory
        say("fed", resident(), memory.given_back_bytes // MIB, memory.times)


if __name__ == "__main__":
    group(sys.argv[1])
