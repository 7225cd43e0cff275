"""The file of a cold directory's pins: `pins.json` beside the namespaces, replaced as a whole."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import cast, get_args

from omlx_cache_storage.cold.catalog import read_namespace
from omlx_cache_storage.cold.changes import Repinned, encode
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.document import read_map
from omlx_cache_storage.cold.records import SMALL_FILE_BYTES
from omlx_cache_storage.cold.removal import WAIT_SECONDS, ledger_of
from omlx_cache_storage.cold.temporary import TemporaryNames
from omlx_cache_storage.errors import CacheError
from omlx_cache_storage.format.names import PINS_FILE
from omlx_cache_storage.hints import FOREVER_NS, PinKind, PinRecord, Pins, living
from omlx_cache_storage.keys import NAMESPACE_BYTES, BlockKey
from omlx_cache_storage.listing import ListedPage

VERSION = 1
MAX_PINS_BYTES = 4 * 1024 * 1024
"""What a reader takes into memory: the keys of some 60,000 blocks."""


def read_pins(cold_dir: Path, fs: FileSystem | None = None) -> tuple[PinRecord, ...]:
    """Return what a directory's file says, nothing for one that is missing or torn, ended pins too.

    Reads a file; raises OSError where the disk refuses.
    """
    return parse_pins(_read(cold_dir, fs or FileSystem()))


def is_readable(cold_dir: Path, fs: FileSystem | None = None) -> bool:
    """True unless there is a file that says nothing, or not all, to this version; raises
    OSError."""
    fs = fs or FileSystem()
    if not fs.exists(os.path.join(cold_dir, PINS_FILE)):
        return True
    return _version(_read(cold_dir, fs)) == VERSION


def write_pins(
    cold_dir: Path, pins: Iterable[PinRecord], names: TemporaryNames, fs: FileSystem
) -> bool:
    """Replace a directory's file durably, whole or not at all; False where a newer version wrote
    it.

    Raises OSError, and ValueError for more than a file has room for.
    """
    raw = _encoded(pins)
    if len(raw) > MAX_PINS_BYTES:
        raise ValueError(f"{PINS_FILE} has room for the keys of some 60,000 blocks, and no more")
    if is_newer(cold_dir, fs):
        return False
    names.replace(os.path.join(cold_dir, PINS_FILE), raw, fs, "fsync")
    fs.sync_directory(cold_dir, "fsync")
    return True


def is_newer(cold_dir: Path, fs: FileSystem) -> bool:
    """True when a newer version wrote a directory's file; raises OSError."""
    return _version(_read(cold_dir, fs)) > VERSION


def file_bytes(pins: Collection[PinRecord]) -> int:
    """Return what a directory has to count for the file, its name aside: for itself and one that
    takes its place; nothing without pins."""
    if not pins:
        return 0
    size = len(_encoded(pins))
    return SMALL_FILE_BYTES if 2 * size <= SMALL_FILE_BYTES else 2 * (size + SMALL_FILE_BYTES)


class PinsRefused(CacheError):
    """A directory's pins cannot be changed; the text says why, and what to do."""


def change_pins(
    cold_dir: Path,
    change: Callable[[tuple[PinRecord, ...]], Iterable[PinRecord]],
    fs: FileSystem | None = None,
) -> tuple[PinRecord, ...]:
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


def pins_in(cold_dir: Path, records: Iterable[PinRecord], namespaces: Iterable[BlockKey]) -> Pins:
    """Return those pins that have not ended, with what they mean of namespaces of a directory."""
    pins = Pins(partial(read_namespace, cold_dir))
    pins.go_by(living(records, time.time_ns()), ())
    pins.learn(namespaces)
    return pins


def pinned_in(
    cold_dir: Path, pages: Iterable[ListedPage], fs: FileSystem | None = None
) -> Callable[[ListedPage], bool]:
    """Return what tells the pages that a directory's pins mean; raises OSError."""
    pins = pins_in(cold_dir, read_pins(cold_dir, fs), {page.namespace for page in pages})
    return lambda page: pins.until(page.namespace, page.page.key) > 0


def parse_pins(document: Mapping[str, object]) -> tuple[PinRecord, ...]:
    """Return the pins that can be understood; what a newer version wrote counts as far as that."""
    pins = document.get("pins")
    if not _version(document) or not isinstance(pins, list):
        return ()
    found = (_pin(pin) for pin in pins if isinstance(pin, dict))
    return tuple(pin for pin in found if pin is not None)


def _pin(said: Mapping[str, object]) -> PinRecord | None:
    kind, name = said.get("kind"), said.get("name")
    since_ns, until_ns = said.get("since"), said.get("until")
    if kind not in get_args(PinKind) or not isinstance(name, str) or not _is_time(since_ns):
        return None
    if until_ns is not None and not _is_time(until_ns):
        return None
    kind, since, until = cast(PinKind, kind), cast(int, since_ns), cast(int | None, until_ns)
    keys = said.get("keys")
    try:
        if kind == "namespace" and len(bytes.fromhex(name)) != NAMESPACE_BYTES:
            return None
        if kind != "key":
            return PinRecord(kind, name, since, until)
        namespace = BlockKey(bytes.fromhex(str(said.get("namespace"))))
        chain = tuple(BlockKey(bytes.fromhex(key)) for key in cast(list[str], keys))
    except (ValueError, TypeError):
        return None
    return PinRecord(kind, name, since, until, namespace, chain)


def _encoded(pins: Iterable[PinRecord]) -> bytes:
    document = {"version": VERSION, "pins": [_document(pin) for pin in pins]}
    return json.dumps(document, indent=1).encode() + b"\n"


def _document(pin: PinRecord) -> dict[str, object]:
    said: dict[str, object] = {
        "kind": pin.kind,
        "name": pin.name,
        "since": pin.since_ns,
        "until": pin.until_ns,
    }
    if pin.namespace is not None:
        said |= {"namespace": pin.namespace.hex(), "keys": [key.hex() for key in pin.keys]}
    return said


def _read(cold_dir: Path, fs: FileSystem) -> dict[str, object]:
    path = os.path.join(cold_dir, PINS_FILE)
    return read_map(path, fs, MAX_PINS_BYTES) if fs.exists(path) else {}


def _version(document: Mapping[str, object]) -> int:
    """Return which version wrote a file, 0 for nobody's."""
    version = document.get("version")
    return version if isinstance(version, int) and version is not True and version > 0 else 0


def _is_time(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= FOREVER_NS
