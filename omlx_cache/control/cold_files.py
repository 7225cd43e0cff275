"""The pages, namespaces and pins of a cold directory, read from its files without a store."""

import os
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from omlx_cache.settings import CacheSettings
from omlx_cache.settings.machine import Disks
from omlx_cache_storage.cold.catalog import ColdEntry, namespace_directories, read_namespace, walk
from omlx_cache_storage.cold.disk import DISK, SMALL_FILE_BYTES, FileSystem
from omlx_cache_storage.cold.files import EXPECTED_FILES
from omlx_cache_storage.cold.index import rooted
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.format.names import (
    ENTRY_BYTES,
    KEEPER_FILE,
    NAMESPACE_FILE,
    PINS_FILE,
    StoredPage,
)
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.pins import PinRecord, Pins, living


def open_tier(cold: ColdTier, settings: CacheSettings) -> None:
    def budget(used_bytes: int) -> int:
        # It may be mounted only now: a share of the disk below would evict pages.
        if isinstance(settings.machine.disk, Disks):
            settings.machine.disk.pop(settings.cold_dir, None)
        cold.evictor.min_free = settings.least_free()
        return settings.cold_budget(used_bytes)

    cold.open(budget)


def scan(cold_dir: Path) -> Iterator[ColdEntry]:
    """Yield the pages of a cold directory, by directory scan only."""
    for found in walk(cold_dir, DISK):
        if found.name is not None:
            yield ColdEntry(
                cold_dir, StoredPage(found.namespace, found.name, found.nbytes), found.mtime_ns
            )


def entries(cold_dir: Path) -> list[ColdEntry]:
    """Return the pages of a directory with the stamps that a store would give them, in no order.
    Opens no file. Raises OSError."""
    found = ((entry.stored, entry.used_ns) for entry in scan(cold_dir))
    return [ColdEntry(cold_dir, stored, stamp_ns) for stored, stamp_ns in rooted(found)]


ROOT_FILES = frozenset((*EXPECTED_FILES, KEEPER_FILE, PINS_FILE))
"""Files that a cache has beside its namespaces."""


def root_bytes(cold_dir: Path, fs: FileSystem = DISK) -> int:
    """Return the bytes of a directory without its namespaces and foreign files, as a tier counts
    them. Raises OSError."""
    files = dict.fromkeys(EXPECTED_FILES, SMALL_FILE_BYTES)
    for entry in fs.scan(cold_dir):
        if entry.name in ROOT_FILES:
            files[entry.name] = max(SMALL_FILE_BYTES, entry.stat(follow_symlinks=False).st_size)
    return SMALL_FILE_BYTES + ENTRY_BYTES + sum(nbytes + ENTRY_BYTES for nbytes in files.values())


def namespaces(cold_dir: Path) -> dict[BlockKey, dict[str, object]]:
    """Return the namespaces with the documents that their digests were made from; an unreadable
    document is empty."""
    return {
        digest: read_namespace(cold_dir, digest)
        for digest, _ in namespace_directories(cold_dir, DISK)
    }


def pins_in(cold_dir: Path, records: Iterable[PinRecord], namespaces: Iterable[BlockKey]) -> Pins:
    pins = Pins(partial(read_namespace, cold_dir))
    pins.go_by(living(records, time.time_ns()), ())
    pins.learn(namespaces)
    return pins


def created_ns(cold_dir: Path, digest: BlockKey) -> int | None:
    """Its document is written with its first page, and goes with its last; None without one."""
    try:
        return os.lstat(os.path.join(cold_dir, digest.hex(), NAMESPACE_FILE)).st_mtime_ns
    except OSError:
        return None
