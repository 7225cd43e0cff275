"""Rates: of work on KV, and of reading from a disk."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

_CHUNK = 4 << 20
_MIN_SECONDS = 0.2


def rate(work: Callable[[], None], dense_bytes: int) -> float:
    """Return GB/s of dense bytes: the best of the runs that fit into 0.2 s, at least three."""
    work()
    best, spent, runs = float("inf"), 0.0, 0
    while spent < _MIN_SECONDS or runs < 3:
        started = time.perf_counter()
        work()
        elapsed = time.perf_counter() - started
        best, spent, runs = min(best, elapsed), spent + elapsed, runs + 1
    return dense_bytes / best / 1e9


def disk_read_rate(directory: Path, size: int) -> float:
    """Write a temporary file, drop it from the page cache and read it; returns GB/s.

    Blocks for the time of both. Where the system cannot drop a file from its cache (macOS), the
    file is read around the cache instead.
    """
    block = os.urandom(_CHUNK)
    with tempfile.NamedTemporaryFile(dir=directory, prefix="bench-kv-") as file:
        for _ in range(max(1, size // _CHUNK)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        written = file.tell()
        _forget(file.fileno())
        buffer = bytearray(_CHUNK)
        started = time.perf_counter()
        position = 0
        while position < written:
            position += os.preadv(file.fileno(), [buffer], position)
        return written / (time.perf_counter() - started) / 1e9


def restore_rate(disk: float, ratio: float, decode: float | None) -> float:
    """Return dense GB/s delivered when pages `ratio` times smaller are read, then decoded.

    Reading and decoding follow one another, so this is a lower bound. `decode` is None where
    nothing is decoded.
    """
    return 1.0 / (1.0 / (disk * ratio) + (0.0 if decode is None else 1.0 / decode))


def _forget(descriptor: int) -> None:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return
    import fcntl

    fcntl.fcntl(descriptor, getattr(fcntl, "F_NOCACHE", 48), 1)
