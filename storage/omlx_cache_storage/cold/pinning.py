"""Changing a directory's pins from outside of its stores: those that run on it are told."""

import contextlib
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from omlx_cache_storage.cold.catalog import read_namespace
from omlx_cache_storage.cold.changes import Repinned, encode
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.pin import DirectoryPin, Pins, living
from omlx_cache_storage.cold.pins_file import read_pins, write_pins
from omlx_cache_storage.cold.removal import WAIT_SECONDS, ledger_of
from omlx_cache_storage.cold.standing import Standing
from omlx_cache_storage.cold.temporary import TemporaryNames
from omlx_cache_storage.errors import CacheError
from omlx_cache_storage.format.names import PINS_FILE
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.listed import ListedPage


class PinsRefused(CacheError):
    """A directory's pins cannot be changed; the text says why, and what to do."""


def change_pins(
    cold_dir: Path, change: Callable[[Pins], Iterable[DirectoryPin]], fs: FileSystem | None = None
) -> Pins:
    """Replace a directory's pins by what `change` makes of those that have not ended, durably, and
    return that.

    Nobody else changes them meanwhile. Stores that run go by them from their next write or idle
    moment on. Raises PinsRefused, and OSError when the disk refuses, or others keep the directory
    for too long.
    """
    fs = fs or FileSystem()
    with (
        ledger_of(cold_dir, fs) as ledger,
        contextlib.nullcontext() if ledger is None else ledger.held(WAIT_SECONDS),
    ):
        before = read_pins(cold_dir, fs)
        after = tuple(change(living(before, time.time_ns())))
        if after == before:
            return after
        try:
            written = write_pins(cold_dir, after, TemporaryNames(), fs)
        except ValueError as error:
            raise PinsRefused(f"{error}; unpin something first") from error
        if not written:
            raise PinsRefused(
                f"a newer version of omlx-cache wrote {cold_dir / PINS_FILE}, and may have said "
                "more than this one understands: use that version, or delete the file"
            )
        if ledger is not None:
            ledger.append([encode(Repinned())])
        return after


def standing_of(
    cold_dir: Path, pins: Iterable[DirectoryPin], namespaces: Iterable[BlockKey]
) -> Standing:
    """Return what those pins want that have not ended, of some namespaces of a directory."""
    standing = Standing(partial(read_namespace, cold_dir))
    standing.go_by(living(pins, time.time_ns()))
    standing.learn(namespaces)
    return standing


def pinned_in(
    cold_dir: Path, pages: Iterable[ListedPage], fs: FileSystem | None = None
) -> Callable[[ListedPage], bool]:
    """Return what tells the pages that a directory's pins mean; raises OSError."""
    pins = read_pins(cold_dir, fs)
    if not pins:
        return lambda page: False
    wanted = standing_of(cold_dir, pins, {page.namespace for page in pages})
    return lambda page: wanted.until(page.namespace, page.page.key) > 0
