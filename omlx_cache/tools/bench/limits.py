"""The limits: concatenations, and reading and writing the same files with nothing else."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from omlx_cache.arrays.mlxio import Array, HostView, evaluate
from omlx_cache_storage.cold.disk import Durability, FileSystem
from omlx_cache_storage.cold.page_reader import read_header

LARGEST_BYTES = 1 << 30
"""MLX's shapes are 32-bit integers."""


def concatenate(payloads: Sequence[Array]) -> list[Array]:
    """Join pages of one size into new arrays of up to 1 GiB, on MLX's default device."""
    each = max(1, LARGEST_BYTES // payloads[0].nbytes)
    joined = [
        mx.concatenate(list(payloads[start : start + each]))
        for start in range(0, len(payloads), each)
    ]
    evaluate(joined)
    return joined


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
    """Return the bytes of all files below a directory."""
    total = 0
    for entry in os.scandir(directory):
        if entry.is_dir(follow_symlinks=False):
            total += list_files(Path(entry.path))
        else:
            total += entry.stat(follow_symlinks=False).st_size
    return total
