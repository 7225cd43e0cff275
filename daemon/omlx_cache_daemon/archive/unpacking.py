"""Reading an archive into a directory: what is whole and wanted is published, page by page.

`tarfile` reads the headers; what it may take of the stream for them is bounded here. Regular files
count and directories say nothing. Links, devices and sparse files end the reading.
"""

import io
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Literal, Protocol, Self, TypeVar

from omlx_cache_daemon.archive.manifest import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    ArchiveError,
    Document,
    Manifest,
    decode_manifest,
)
from omlx_cache_daemon.archive.members import MAX_PAGE_BYTES, PageAt, parse_path
from omlx_cache_daemon.page_files import checked
from omlx_cache_storage.errors import PageError, UndecodablePage
from omlx_cache_storage.page import Page, WriteResult

_SHARDS = 300
"""Directories that an archive may name for each namespace, when another program wrote it."""
READ_BYTES = 1024 * 1024
"""Read at a time: memory grows with what came, not with what was announced."""
_BUFFER_BYTES = 16 * 1024
"""Asked of the stream at a time, so that a page is published before the next one has come."""
_HEADER_BYTES = 16 * 1024
"""What the headers before a member may take: names and times, and what other programs add."""
_TOO_EARLY = "the archive ends too early: it was cut off, or is no tar archive"
_SHOWN = 5
MOST_DAMAGED = 1000
"""An archive with more damaged pages is not read on."""

_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE)

Result = TypeVar("Result")
Fate = Literal["imported", "present", "refused", "undecodable", "damaged"]


class Stream(Protocol):
    """Bytes that come in order; none at the end only."""

    def read(self, size: int, /) -> bytes: ...


class _Bounded(io.BufferedIOBase):
    """Gives no more of a stream than the bytes before `end`, a buffer aside."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream
        self._came = 0
        self.end = _HEADER_BYTES

    def read(self, size: int | None = None, /) -> bytes:
        if self._came >= self.end:
            raise ArchiveError(
                f"headers of more than {_HEADER_BYTES:,} bytes are none of a cache's"
            )
        raw = self._stream.read(_BUFFER_BYTES if size is None else size)
        self._came += len(raw)
        return raw


class _Header(tarfile.TarInfo):
    """A member's header; one that is cut off or damaged is not taken for the end mark."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) < tarfile.BLOCKSIZE:
                raise ArchiveError(_TOO_EARLY) from error
            if any(buf):
                text = f"this is no tar archive, or a damaged one: {error}"
                raise ArchiveError(text) from error
            raise


class _Tar(tarfile.TarFile):
    tarinfo = _Header
    members: list[tarfile.TarInfo]


class Target(Protocol):
    """Where pages go."""

    def has(self, page: PageAt) -> bool:
        """True for a page of which there is as much."""
        ...

    def write(self, page: Page, time_ns: int, document: Document) -> WriteResult:
        """Publish a page whole or not at all; raises OSError."""
        ...


@dataclass(slots=True)
class Unpacked:
    """How far an archive was read: pages by what became of them, and their bytes.

    `refused` ones found no room among pages that were used later. `damage` says what is wrong with
    the first damaged ones.
    """

    manifest: Manifest
    pages: Mapping[Fate, int]
    nbytes: int = 0
    damage: list[str] = field(default_factory=list)

    @property
    def read(self) -> int:
        """How many pages came."""
        return sum(self.pages.values())


class Archive:
    """A stream's archive, whose manifest has been read and checked: `unpack` goes on. Raises
    ArchiveError, also when it is made, and OSError as the stream does."""

    def __init__(self, stream: Stream) -> None:
        self._stream = bounded = _Bounded(stream)
        self._tar = _parsed(lambda: _Tar.open(mode="r|", fileobj=bounded, bufsize=_BUFFER_BYTES))
        first = self._next()
        if first is None or first.name.removeprefix("./") != MANIFEST_FILE:
            raise ArchiveError(f"an archive of a cache begins with {MANIFEST_FILE}")
        if not 0 <= first.size <= MAX_MANIFEST_BYTES:
            raise ArchiveError(f"{MANIFEST_FILE} has {first.size:,} bytes")
        self.manifest = decode_manifest(self._read(first))

    def unpack(self, target: Target) -> Iterator[Unpacked]:
        """Hand the pages to a target in their order, and yield what is done after each; a page that
        cannot be used is counted and passed over. Raises OSError as the target does."""
        counts: dict[Fate, int] = dict.fromkeys(
            ("imported", "present", "refused", "undecodable", "damaged"), 0
        )
        # Numbers take a fifth of the memory, and two pages with one are a matter of theory.
        done, seen, now = Unpacked(self.manifest, counts), set[int](), time.time_ns()
        yield done
        manifest, directories = self.manifest, 0
        while (member := self._next()) is not None:
            if member.isdir():
                directories += 1
                if directories > _SHARDS * len(manifest.namespaces):
                    raise ArchiveError(f"there are more than {directories:,} directories")
                continue
            at = self._page(member)
            if hash(at) in seen or len(seen) >= manifest.pages:
                raise ArchiveError(f"{member.name} came twice, or is more than was announced")
            seen.add(hash(at))
            counts[self._take(member, at, _time_ns(member, now), target, done)] += 1
            done.nbytes += member.size
            yield done
            if counts["damaged"] > MOST_DAMAGED:
                raise ArchiveError(f"more than {MOST_DAMAGED:,} pages are damaged")

    def _next(self) -> tarfile.TarInfo | None:
        """Return the next member, None at the end mark."""
        self._stream.end = self._tar.offset + _HEADER_BYTES
        member = _parsed(self._tar.next)
        # It keeps them all, for those who ask by name.
        self._tar.members.clear()
        if member is None:
            if self._tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise ArchiveError(_TOO_EARLY)
        elif not member.isdir() and (member.type not in _FILES or member.issparse()):
            raise ArchiveError(f"{member.name[:200]!r} is neither a file nor a directory")
        self._stream.end = self._tar.offset + _BUFFER_BYTES
        return member

    def _page(self, member: tarfile.TarInfo) -> PageAt:
        at = parse_path(member.name)
        if at.namespace not in self.manifest.namespaces:
            raise ArchiveError(f"{member.name} is of a namespace that was not announced")
        if not 0 <= member.size <= MAX_PAGE_BYTES:
            raise ArchiveError(f"{member.name} has {member.size:,} bytes, which no page has")
        return at

    def _take(
        self, member: tarfile.TarInfo, at: PageAt, time_ns: int, target: Target, done: Unpacked
    ) -> Fate:
        if target.has(at):
            return "present"
        try:
            page = checked(self._read(member), at.namespace, at.name)
        except UndecodablePage:
            return "undecodable"
        except PageError as error:
            if len(done.damage) < _SHOWN:
                done.damage.append(f"{member.name}: {error}")
            return "damaged"
        result = target.write(page, time_ns, self.manifest.namespaces[at.namespace])
        if result == "written":
            return "imported"
        return "present" if result == "present" else "refused"

    def _read(self, member: tarfile.TarInfo) -> bytes:
        """Return a member's bytes; takes no more memory than came."""
        file = _parsed(lambda: self._tar.extractfile(member))
        if file is None:
            return b""
        return _parsed(lambda: b"".join(iter(partial(file.read, READ_BYTES), b"")))


def _parsed(call: Callable[[], Result]) -> Result:
    """Return what a call of `tarfile` returns, which raises much for headers that nobody wrote."""
    try:
        return call()
    except (ArchiveError, OSError):
        raise
    except Exception as error:
        raise ArchiveError(f"{_TOO_EARLY} ({type(error).__name__})") from error


def _time_ns(member: tarfile.TarInfo, now: int) -> int:
    """Return when a page was used: to the nanosecond, which a float would lose, and not later than
    now."""
    if not 0 <= member.mtime <= now / 1e9:
        return now if member.mtime > 0 else 0
    try:
        return min(now, int(Decimal(member.pax_headers.get("mtime", member.mtime)) * 10**9))
    except ArithmeticError:
        return 0
