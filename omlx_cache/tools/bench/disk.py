"""Measurements of the disk: durable pages, and a directory of many files. Beside them stand the
same reads and writes of files with nothing else."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from omlx_cache.adapters.base import PAGED
from omlx_cache.arrays.mlxio import HostView
from omlx_cache.restore.lookup import find_restore_point
from omlx_cache.session import Session
from omlx_cache.tools.bench.bed import (
    CHAIN,
    NAMESPACE,
    Bed,
    chain_of,
    ends_of,
    hash_chain,
    touch_page,
)
from omlx_cache.tools.bench.figures import (
    BLOCK_SIZE,
    BenchRow,
    Measured,
    PreparedWork,
    Size,
    beside,
)
from omlx_cache_storage.cold.disk import Durability, FileSystem
from omlx_cache_storage.cold.page_reader import read_header
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.keys import KeyChain

LEVELS: tuple[Durability, ...] = ("none", "fsync", "full")
LIMIT = 1 << 40
SCAN = "bare scandir and stat"


def measure_disk(size: Size, directory: Path) -> Measured:
    writes = [_written(size, directory, level) for level in LEVELS]
    return Measured([*writes, *_index(size, directory / "index")])


def _written(size: Size, directory: Path, level: Durability) -> BenchRow:
    """Commit and flush the same KV, beside bare files of the same size that are synced alike. The
    files of the run before are deleted first: else the system would write them meanwhile."""
    bed = Bed(size, directory / level, durability=level)
    blocks = size.tokens // BLOCK_SIZE
    raw = RawWrite(directory / f"bare {level}", blocks, size.kv_bytes // blocks, level)
    with bed.store:
        live = bed.live_arrays()

        def write(session: Session) -> None:
            bed.commit(session)
            bed.flush()

        (row,) = beside(
            f"commit and flush, {level}",
            PreparedWork(partial(bed.again, live), write),
            size.runs,
            limits={f"bare files, {level}": [PreparedWork(raw.clear, raw)]},
            nbytes=size.kv_bytes,
        )
    return row


def _index(size: Size, directory: Path) -> list[BenchRow]:
    chain = chain_of(1, size.chain_tokens // BLOCK_SIZE)
    others = chain_of(2, max(1, size.files - len(ends_of(chain))), 1)
    for known in (chain, others):
        for end in ends_of(known):
            touch_page(directory, known, end)
    files = len(ends_of(chain)) + len(others)

    def scan() -> ColdTier:
        tier = ColdTier(directory, LIMIT)
        tier.open()
        if tier.usage().pages != files:
            raise RuntimeError(f"{tier.usage().pages} of {files} files were indexed")
        return tier

    rows = beside(
        f"start-up on {files:,} files",
        scan,
        min(size.runs, 3),
        limits={SCAN: [partial(list_files, directory)]},
    )
    view, tokens = scan(), chain.tokens

    def look_up() -> None:
        chain = KeyChain(NAMESPACE, tokens, BLOCK_SIZE)
        point = find_restore_point(chain, (PAGED,), view, limit=len(tokens))
        if point.position != len(tokens):
            raise RuntimeError(f"the lookup ended at {point.position}")

    return rows + beside(
        f"lookup of {size.chain_tokens:,} tokens",
        look_up,
        size.runs,
        limits={CHAIN: [partial(hash_chain, tokens)]},
    )


class RawRead:
    """Reads the payloads of page files into one buffer, touched before or new, on one thread or on
    those of a pool."""

    def __init__(
        self, directory: Path, pool: ThreadPoolExecutor | None = None, *, new_memory: bool = False
    ) -> None:
        self._pool = pool
        self._places: list[tuple[Path, int, slice]] = []
        end = 0
        for path in sorted(directory.rglob("*.safetensors")):
            header = read_header(path)
            start, end = end, end + header.meta.nbytes
            self._places.append((path, header.data_offset, slice(start, end)))
        self._nbytes = end
        self._buffer = None if new_memory else np.zeros(end, np.uint8)

    def __call__(self) -> HostView:
        buffer = np.empty(self._nbytes, np.uint8) if self._buffer is None else self._buffer
        works = [(path, offset, buffer[place]) for path, offset, place in self._places]
        list(map(_read, works) if self._pool is None else self._pool.map(_read, works))
        return buffer


def _read(place: tuple[Path, int, HostView]) -> None:
    path, offset, buffer = place
    target: Any = buffer
    fd = os.open(path, os.O_RDONLY)
    try:
        done = 0
        while done < target.nbytes:
            done += os.preadv(fd, [memoryview(target)[done:]], offset + done)
    finally:
        os.close(fd)


class RawWrite:
    """Writes files of one size under temporary names and renames them, synced as a store does."""

    def __init__(self, directory: Path, count: int, nbytes: int, durability: Durability) -> None:
        directory.mkdir(parents=True)
        self._paths = [directory / str(number) for number in range(count)]
        self._payload = memoryview(np.random.default_rng(7).bytes(nbytes))
        self._durability: Durability = durability
        self._fs = FileSystem()

    def clear(self) -> None:
        for path in self._paths:
            path.unlink(missing_ok=True)

    def __call__(self, _: object = None) -> None:
        for path in self._paths:
            temporary = path.with_suffix(".tmp")
            self._fs.write(temporary, [self._payload], self._durability)
            temporary.rename(path)
        self._fs.sync_directory(self._paths[0].parent, self._durability)


def can_forget() -> bool:
    """Whether `forget` works here."""
    return hasattr(os, "posix_fadvise")


def forget(place: Path) -> None:
    """Ask the system to drop a file, or all in a directory, from its memory."""
    for path in place.rglob("*") if place.is_dir() else (place,):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def list_files(directory: Path) -> int:
    total = 0
    for entry in os.scandir(directory):
        if entry.is_dir(follow_symlinks=False):
            total += list_files(Path(entry.path))
        else:
            total += entry.stat(follow_symlinks=False).st_size
    return total
