"""The small JSON files of a cold directory: each is read with doubt, and replaced as a whole. Only
a full disk has budget and pins written in place. `docs/format.md` says what they hold.

A file that is missing, torn or another user's says nothing.
"""

import contextlib
import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast, get_args

from omlx_cache_storage.breaker import NO_ROOM
from omlx_cache_storage.cold.disk import (
    DISK,
    SMALL_FILE_BYTES,
    Descriptor,
    Durability,
    FileSystem,
    StrPath,
    replace_file,
)
from omlx_cache_storage.eviction.keep import Learned, parse_learned
from omlx_cache_storage.format.names import (
    BUDGET_FILE,
    LEDGER_FILE,
    PINS_FILE,
    REUSE_FILE,
)
from omlx_cache_storage.keys import NAMESPACE_BYTES, BlockKey
from omlx_cache_storage.pins import FOREVER_NS, PinKind, PinRecord

MAX_DOCUMENT_BYTES = 1024 * 1024
"""Bytes that a reader takes into memory; a larger file is no document of ours."""
MAX_PINS_BYTES = 4 * 1024 * 1024
"""The same for pins: the keys of some 60,000 blocks."""
VERSION = 1


def read_map(path: StrPath, fs: FileSystem, most: int = MAX_DOCUMENT_BYTES) -> dict[str, object]:
    """Return a small file's map, {} for one that is missing, torn, longer than `most` or another
    user's; raises OSError where the disk refuses."""
    try:
        with fs.reading(path) as fd:
            raw = fs.read(fd, most + 1, 0)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    try:
        document = json.loads(raw) if len(raw) <= most else {}
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def read_document(path: StrPath, fs: FileSystem) -> dict[str, object]:
    try:
        return read_map(path, fs)
    except OSError:
        return {}


class SmallFile(NamedTuple):
    """A file beside the namespaces that says which version wrote it, and may be `most` bytes
    long."""

    name: str
    most: int = MAX_DOCUMENT_BYTES

    def read(self, cold_dir: Path, fs: FileSystem) -> dict[str, object]:
        return read_map(os.path.join(cold_dir, self.name), fs, self.most)

    def is_newer(self, cold_dir: Path, fs: FileSystem = DISK) -> bool:
        """True when a newer version wrote a directory's file, which may say more than this one
        understands; raises OSError."""
        return _version(self.read(cold_dir, fs)) > VERSION

    def is_readable(self, cold_dir: Path, fs: FileSystem = DISK) -> bool:
        """True unless there is a file that says nothing, or not all, to this version; raises
        OSError."""
        return (
            not fs.exists(os.path.join(cold_dir, self.name))
            or _version(self.read(cold_dir, fs)) == VERSION
        )

    def replace(
        self,
        cold_dir: Path,
        raw: bytes,
        fs: FileSystem,
        durability: Durability,
    ) -> bool:
        """Give a directory's file another content, whole or not at all; False where a newer version
        wrote it. A full disk takes a small one in its place. Raises OSError."""
        if self.is_newer(cold_dir, fs):
            return False
        path = os.path.join(cold_dir, self.name)
        try:
            replace_file(path, raw, fs, durability)
        except OSError as error:
            info = fs.own_file(path)
            # For a second block there may be no room: half of the file would be written.
            if (
                error.errno not in NO_ROOM
                or info is None
                or max(len(raw), info.st_size) > SMALL_FILE_BYTES
            ):
                raise
            with contextlib.closing(Descriptor(fs.open(path, writing=True))) as file:
                # In one write into the block that it has: blanks behind it mean nothing.
                fs.poke(file.fd, raw.ljust(info.st_size), 0)
                fs.sync(file.fd, durability)
        if durability != "none":
            fs.sync_directory(cold_dir, durability)
        return True


MOST_BYTES = (1 << 63) - 1
SetBy = Literal["free space", "store", "quota"]
WORDS: Final[Mapping[SetBy, str]] = {
    "free space": "the free space that the disk had",
    "store": "a store's cold_bytes",
    "quota": "`omlx-cache quota`",
}


@dataclass(frozen=True, slots=True)
class Budget:
    """The bytes that a directory may take on the disk, and who set them. Raises ValueError for a
    number that no directory can have.

    An earlier version wrote `shares`, ceilings for parts of the directory. This version keeps them
    in the file and ignores them.
    """

    nbytes: int
    set_by: SetBy
    shares: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.nbytes <= MOST_BYTES:
            raise ValueError(f"no number of bytes: {self.nbytes}")


BUDGET: Final = SmallFile(BUDGET_FILE)
PINS: Final = SmallFile(PINS_FILE, MAX_PINS_BYTES)


def room_for(raw: bytes) -> int:
    """Return the bytes that a directory counts for a file with this content, its name aside: the
    file and its successor, for the moment at which both exist. While a file is small, the room for
    small files is enough for that."""
    size = len(raw)
    return SMALL_FILE_BYTES if 2 * size <= SMALL_FILE_BYTES else 2 * (size + SMALL_FILE_BYTES)


def _version(document: Mapping[str, object]) -> int:
    version = document.get("version")
    return version if isinstance(version, int) and version is not True and version > 0 else 0


def is_count(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def read_budget(cold_dir: Path, fs: FileSystem = DISK) -> Budget | None:
    """Return the budget of a directory's file, None for a file that has none.

    Raises OSError where the disk fails. A caller must not take that for no budget: it would replace
    a budget that a person set.
    """
    return parse_budget(BUDGET.read(cold_dir, fs))


def write_budget(cold_dir: Path, budget: Budget, fs: FileSystem = DISK) -> bool:
    """Replace a directory's file, as `SmallFile.replace` does; a person's budget durably. False
    also where the directory is not this user's alone, or is missing."""
    if not fs.exists(cold_dir) or not fs.identity(cold_dir)[-1]:
        return False
    # A person's budget survives a power cut. A store sets its own again.
    durability: Durability = "fsync" if budget.set_by == "quota" else "none"
    return BUDGET.replace(cold_dir, encode_budget(budget), fs, durability)


def encode_budget(budget: Budget) -> bytes:
    known = {"bytes": budget.nbytes, "set_by": budget.set_by, "shares": dict(budget.shares)}
    return json.dumps({"version": VERSION, **known}, indent=1, sort_keys=True).encode() + b"\n"


def parse_budget(document: Mapping[str, object]) -> Budget | None:
    """Return the budget that a file says, None where it names no bytes.

    A newer version's file counts as far as it is understood, and as set by `omlx-cache quota`: no
    store of this version replaces it.
    """
    version, nbytes, said = _version(document), document.get("bytes"), document.get("set_by")
    if not version or not is_count(nbytes, MOST_BYTES):
        return None
    known = version == VERSION and said in get_args(SetBy)
    shares = document.get("shares")
    return Budget(
        cast(int, nbytes),
        cast(SetBy, said) if known else "quota",
        shares if isinstance(shares, dict) else {},
    )


def read_pins(cold_dir: Path, fs: FileSystem = DISK) -> tuple[PinRecord, ...]:
    return parse_pins(PINS.read(cold_dir, fs))


def write_pins(cold_dir: Path, pins: Iterable[PinRecord], fs: FileSystem) -> bool:
    """Replace a directory's file durably, as `SmallFile.replace` does. Raises ValueError too, for
    more than a file has room for."""
    raw = encode_pins(pins)
    if len(raw) > MAX_PINS_BYTES:
        raise ValueError(f"{PINS_FILE} has room for the keys of some 60,000 blocks, and no more")
    return PINS.replace(cold_dir, raw, fs, "fsync")


def encode_pins(pins: Iterable[PinRecord]) -> bytes:
    documents: list[dict[str, object]] = []
    for pin in pins:
        documents.append(
            {"kind": pin.kind, "name": pin.name, "since": pin.since_ns, "until": pin.until_ns}
        )
        if pin.namespace is not None:
            documents[-1] |= {
                "namespace": pin.namespace.hex(),
                "keys": [key.hex() for key in pin.keys],
            }
    return json.dumps({"version": VERSION, "pins": documents}, indent=1).encode() + b"\n"


def pins_bytes(pins: Collection[PinRecord]) -> int:
    return room_for(encode_pins(pins)) if pins else 0


def parse_pins(document: Mapping[str, object]) -> tuple[PinRecord, ...]:
    """Return the pins that can be understood; a newer version's file counts as far as that."""
    pins, found = document.get("pins"), list[PinRecord]()
    for said in pins if _version(document) and isinstance(pins, list) else ():
        with contextlib.suppress(ValueError, TypeError, KeyError):
            found.append(_pin(said))
    return tuple(found)


def _pin(said: Mapping[str, Any]) -> PinRecord:
    kind, name, since, until = said["kind"], said["name"], said["since"], said.get("until")
    times = is_count(since, FOREVER_NS) and (until is None or is_count(until, FOREVER_NS))
    if kind not in get_args(PinKind) or not isinstance(name, str) or not times:
        raise ValueError("no pin")
    pin = PinRecord(kind, name, since, until)
    if kind == "namespace" and len(bytes.fromhex(name)) != NAMESPACE_BYTES:
        raise ValueError("no namespace")
    if kind == "key":
        pin = replace(
            pin,
            namespace=BlockKey(bytes.fromhex(said["namespace"])),
            keys=tuple(BlockKey(bytes.fromhex(key)) for key in said["keys"]),
        )
    return pin


class Reuse(NamedTuple):
    """The learning of both tiers' policies, None for one that has learned nothing."""

    memory: Learned | None = None
    disk: Learned | None = None


def read_reuse(cold_dir: Path, fs: FileSystem = DISK) -> Reuse:
    return parse_reuse(read_document(os.path.join(cold_dir, REUSE_FILE), fs))


def write_reuse(cold_dir: Path, reuse: Reuse, fs: FileSystem = DISK) -> bool:
    """Replace a directory's file, whole or not at all; False where the directory is not this user's
    alone, is missing, or was not used by a store. Raises OSError."""
    # Without a ledger it is the place where a disk is mounted at other times.
    if not fs.exists(os.path.join(cold_dir, LEDGER_FILE)) or not fs.identity(cold_dir)[-1]:
        return False
    tiers = {name: one.document() for name, one in reuse._asdict().items() if one is not None}
    replace_file(
        os.path.join(cold_dir, REUSE_FILE),
        json.dumps({"version": VERSION, **tiers}).encode() + b"\n",
        fs,
    )
    return True


def parse_reuse(document: dict[str, object]) -> Reuse:
    if document.get("version") != VERSION:
        return Reuse()
    return Reuse(
        *(
            parse_learned(one) if isinstance(one, dict) else None
            for one in map(document.get, Reuse._fields)
        )
    )
