"""A process with a full hot tier; run by a test that makes memory short around it.

`hungry.py FILE` joins the control group whose process list is FILE, then takes memory of its own,
a little whenever there is some, until it has as much as the group has room for beside an empty
hot tier. It prints how many MiB its store gave back, and in how many times.
"""

import os
import sys
from pathlib import Path

from kit.remote.processes import until
from kit.storage import Story
from kit.units import MIB
from omlx_cache import BlockStore, CacheSettings
from omlx_cache.arrays.mlxio import allocate_payload
from omlx_cache.upkeep.memory import reader
from omlx_cache_storage.page import Page

HOT_MIB = 192
OWN_MIB = 192


def fill(store: BlockStore) -> None:
    """Fill the hot tier with live arrays of 1 MiB, all of whose bytes were written."""
    story = Story(nbytes=MIB, blocks=HOT_MIB)
    for number in range(1, HOT_MIB + 1):
        room = store.admit(MIB)
        assert room
        payload = allocate_payload(MIB)
        memoryview(payload).cast("B")[:] = bytes([number % 256]) * MIB
        store.put(Page(story.meta(number), payload), room)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(str(os.getpid()))
    given = CacheSettings(hot_cache_only=True, hot_bytes=HOT_MIB * MIB, socket="off")
    with BlockStore(given) as store:
        store._relief.wanted_bytes = 48 * MIB
        fill(store)
        own: list[bytearray] = []
        for _ in range(OWN_MIB // 8):
            until(lambda: (reader()().free_bytes or 0) > 16 * MIB)
            own.append(bytearray(b"x" * (8 * MIB)))
        memory = store.stats().memory
        print(memory.given_back_bytes // MIB, memory.times)
