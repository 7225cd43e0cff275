"""The limits: one memcpy, one concatenation, and reading the same files with nothing around it."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from omlx_cache.arrays.mlxio import Array, HostView, evaluate
from omlx_cache_storage.cold.reader import read_header

LARGEST_BYTES = 1 << 30
"""MLX's shapes are 32-bit integers."""


class RawCopy:
    """One memcpy: into memory that was touched before, or into new memory."""

    def __init__(self, nbytes: int, *, new_memory: bool = False) -> None:
        self._from = np.full(nbytes, 1, np.uint8)
        self._to = None if new_memory else np.zeros(nbytes, np.uint8)

    def __call__(self) -> HostView | None:
        if self._to is None:
            return self._from.copy()
        np.copyto(self._to, self._from)
        return None


class Concatenation:
    """MLX concatenations of pages into new arrays of up to 1 GiB, on MLX's default device."""

    def __init__(self, payloads: Sequence[Array]) -> None:
        self._batches: list[list[Array]] = [[]]
        room = LARGEST_BYTES
        for payload in payloads:
            if room < payload.nbytes and self._batches[-1]:
                self._batches.append([])
                room = LARGEST_BYTES
            self._batches[-1].append(payload)
            room -= payload.nbytes

    def __call__(self) -> list[Array]:
        joined = [mx.concatenate(batch) for batch in self._batches]
        evaluate(joined)
        return joined


class RawRead:
    """Reads the payloads of page files into one buffer, touched before or new.

    With as many threads as the store uses when `pool` is given, else with one.
    """

    def __init__(
        self, directory: Path, pool: ThreadPoolExecutor | None, *, new_memory: bool = False
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
        if self._pool is None:
            for work in works:
                _read(work)
        else:
            list(self._pool.map(_read, works))
        return buffer

    def forget(self, others: Sequence[Path] = ()) -> None:
        """Ask the system to drop the files, and others, from its memory; see `can_forget`."""
        for path in [*(place[0] for place in self._places), *others]:
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def can_forget() -> bool:
    """True where files can be dropped from the system's memory without being root."""
    return hasattr(os, "posix_fadvise")


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
