"""Pages in one file for another machine: a tar archive, manifest first, parents before children.

Nothing in an archive is trusted: names, sizes and every byte are checked. `tarfile` reads the
headers; this module bounds the bytes that it takes of the stream for them. Regular files count and
directories say nothing. Links, devices and sparse files end the reading.
"""

import io
import json
import re
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from functools import partial
from typing import IO, Literal, NamedTuple, Protocol, Self, TypeVar

from omlx_cache.control.serialization import read
from omlx_cache_daemon.checking import checked, read_from_disk
from omlx_cache_storage.cold.catalog import ColdEntry
from omlx_cache_storage.cold.disk import DISK, FileSystem
from omlx_cache_storage.errors import CacheError, PageError, UndecodablePage
from omlx_cache_storage.format import FORMAT_VERSION
from omlx_cache_storage.format.names import PageName, page_path, parse_name
from omlx_cache_storage.keys import BlockKey, namespace_digest
from omlx_cache_storage.page import Page, WriteResult

MANIFEST_FILE = "omlx-cache.json"
FORMAT = "omlx-cache archive"
VERSION = 1
MAX_MANIFEST_BYTES = 16 * 1024 * 1024
MAX_PAGE_BYTES = 1 << 30
MOST_PAGES = 1 << 40
MOST_DAMAGED = 1000
"""An archive with more damaged pages is not read on."""
READ_BYTES = 1024 * 1024
"""Bytes read at a time: memory grows with the bytes that came, not with the announced ones."""
_SHARDS = 300
"""Directories that an archive may name for each namespace, when another program wrote it."""
_BUFFER_BYTES = 16 * 1024
"""Asked of the stream at a time, so that a page is published before the next one has come."""
_HEADER_BYTES = 16 * 1024
"""Bytes that the headers before a member may take: names and times, and the additions of other
programs."""
_TOO_EARLY = "the archive ends too early: it was cut off, or is no tar archive"
_SHOWN = 5
_DIGITS = re.compile(r"[0-9a-f]{64}")
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE)

Document = Mapping[str, object]
Result = TypeVar("Result")
Fate = Literal["imported", "present", "refused", "undecodable", "damaged"]


class ArchiveError(CacheError):
    """An archive is not one of ours, is damaged, or ends too early; the text says where."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The first member, as JSON has it: at most `pages` files of so many bytes. `what` names them
    for people; `namespaces` has their documents by digest."""

    pages: int
    bytes: int
    namespaces: Mapping[str, Mapping[str, object]]
    what: str = ""
    tool: str = ""


def encode_manifest(manifest: Manifest) -> bytes:
    """Raises ArchiveError for documents of more than 16 MiB."""
    head = {"format": FORMAT, "version": VERSION, "page_format": FORMAT_VERSION}
    raw = json.dumps({**head, **asdict(manifest)}, indent=1).encode()
    if len(raw) > MAX_MANIFEST_BYTES:
        raise ArchiveError("these are too many namespaces for one archive: name fewer")
    return raw


def decode_manifest(raw: bytes) -> Manifest:
    """Raises ArchiveError for what `encode_manifest` did not write, and for documents that are not
    their namespaces'."""
    try:
        said = json.loads(raw)
        if not isinstance(said, dict) or said.get("format") != FORMAT:
            raise ArchiveError(f"{MANIFEST_FILE} does not say that this is an {FORMAT}")
        if said.get("version") != VERSION:
            raise ArchiveError(
                f"this is an archive of version {said.get('version')!r:.20}, and version {VERSION} "
                "can be read here: use the version of omlx-cache that wrote it, or a later one"
            )
        manifest = read(Manifest, said)
    except (ValueError, RecursionError) as error:
        raise ArchiveError(f"{MANIFEST_FILE} cannot be read: {error!s:.200}") from error
    if not 0 <= manifest.pages <= MOST_PAGES:
        raise ArchiveError(f"{MANIFEST_FILE} says that there are {manifest.pages:,} pages")
    for digits, document in manifest.namespaces.items():
        if not _is_its_own(digits, document):
            raise ArchiveError(f"{MANIFEST_FILE}: {digits[:80]!r} has a document of something else")
    return manifest


def _is_its_own(digits: str, document: Document) -> bool:
    """True unless a document is whole, and is not the content of a digest."""
    fields = {name: value for name, value in document.items() if name != "label"}
    if not fields or any(isinstance(v, dict) and "omitted" in v for v in fields.values()):
        return _DIGITS.fullmatch(digits) is not None
    try:
        return namespace_digest(fields).hex() == digits
    except (TypeError, ValueError, RecursionError):
        return False


class PageAt(NamedTuple):
    """A page, and the namespace that it lies in."""

    namespace: BlockKey
    name: PageName

    @property
    def path(self) -> str:
        return page_path("", *self)


def parse_path(path: str) -> PageAt:
    """Raises ArchiveError unless `PageAt.path` would give exactly this name, `./` before it
    aside."""
    given = path.removeprefix("./")
    digits, _, rest = given.partition("/")
    name = parse_name(rest.partition("/")[2])
    if name is not None and _DIGITS.fullmatch(digits):
        page = PageAt(BlockKey(bytes.fromhex(digits)), name)
        if page.path == given:
            return page
    raise ArchiveError(f"{path[:200]!r} is no name of a page")


Packed = Counter[Literal["pages", "bytes", "gone", "damaged"]]
"""Counts of an archive: its pages, and those that it lacks because they left the directory
meanwhile, are damaged, or could not be read."""


def in_order(pages: Iterable[ColdEntry]) -> list[ColdEntry]:
    """Return each page behind those before it in its chain."""
    return sorted(pages, key=lambda e: (e.namespace, e.stored.name.position, e.stored.name))


def pack(
    pages: Iterable[ColdEntry], manifest: Manifest, to: IO[bytes], fs: FileSystem = DISK
) -> Iterator[Packed]:
    """Write an archive page by page, and yield the counts so far after each; it is whole when this
    ends. One page is in memory at a time. Raises OSError as the stream does."""
    done = Packed()
    _write(MANIFEST_FILE, encode_manifest(manifest), time.time_ns(), to)
    for entry in pages:
        at = PageAt(entry.namespace, entry.stored.name)
        try:
            with fs.reading(page_path(entry.cold_dir, *at)) as fd:
                raw = read_from_disk(fd)
            checked(raw, *at)
        except FileNotFoundError:
            done["gone"] += 1
        except (OSError, PageError):
            done["damaged"] += 1
        else:
            _write(at.path, raw, entry.used_ns, to)
            done["pages"] += 1
            done["bytes"] += len(raw)
        yield done
    to.write(bytes(2 * tarfile.BLOCKSIZE))
    to.flush()


def _write(name: str, raw: bytes, time_ns: int, to: IO[bytes]) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(raw), 0o600, time_ns // 10**9
    # As text: a float would lose the end of it.
    info.pax_headers = {"mtime": f"{time_ns // 10**9}.{time_ns % 10**9:09d}"}
    to.write(info.tobuf(tarfile.PAX_FORMAT, "ascii", "strict"))
    to.write(raw + bytes(-len(raw) % tarfile.BLOCKSIZE))


class _HeadersAhead(io.BufferedIOBase):
    """Gives no more of a stream than the bytes before `end`, a buffer aside."""

    def __init__(self, stream: IO[bytes]) -> None:
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
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise
            text = f"no archive of omlx-cache export, or a damaged one: {error}"
            raise ArchiveError(_TOO_EARLY if len(buf) < tarfile.BLOCKSIZE else text) from error


class _Tar(tarfile.TarFile):
    tarinfo = _Header
    members: list[tarfile.TarInfo]


class PageTarget(Protocol):
    """Where pages go."""

    def has(self, page: PageAt) -> bool:
        """True for a page of which there is as much."""

    def write(self, page: Page, time_ns: int, document: Document) -> WriteResult:
        """Publish a page whole or not at all; raises OSError."""


@dataclass(slots=True)
class Unpacked:
    """How far an archive was read. `refused` pages found no room among pages that were used later.
    `damage` describes the first damaged ones."""

    pages: Counter[Fate] = field(default_factory=Counter)
    nbytes: int = 0
    damage: list[str] = field(default_factory=list)


class Archive:
    """A stream's archive, whose manifest has been read and checked. Raises ArchiveError, also when
    it is made, and OSError as the stream does."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = bounded = _HeadersAhead(stream)
        self._tar = _parsed(lambda: _Tar.open(mode="r|", fileobj=bounded, bufsize=_BUFFER_BYTES))
        first = self._next()
        if first is None or first.name.removeprefix("./") != MANIFEST_FILE:
            raise ArchiveError(f"an archive of a cache begins with {MANIFEST_FILE}")
        if first.size > MAX_MANIFEST_BYTES:
            raise ArchiveError(f"{MANIFEST_FILE} has {first.size:,} bytes")
        self.manifest = decode_manifest(self._read(first))

    def unpack(self, target: PageTarget) -> Iterator[Unpacked]:
        """Hand the pages to a target in their order, and yield the counts after each; a page that
        cannot be used is counted and passed over. Raises OSError as the target does."""
        # Numbers take a fifth of the memory, and two pages with one are a matter of theory.
        done, seen, now, directories = Unpacked(), set[int](), time.time_ns(), 0
        yield done
        while (member := self._next()) is not None:
            if member.isdir():
                directories += 1
                if directories > _SHARDS * len(self.manifest.namespaces):
                    raise ArchiveError(f"there are more than {directories:,} directories")
                continue
            at = parse_path(member.name)
            if at.namespace.hex() not in self.manifest.namespaces:
                raise ArchiveError(f"{member.name} is of a namespace that was not announced")
            if hash(at) in seen or len(seen) >= self.manifest.pages:
                raise ArchiveError(f"{member.name} came twice, or is more than was announced")
            seen.add(hash(at))
            done.pages[self._take(member, at, _time_ns(member, now), target, done)] += 1
            done.nbytes += member.size
            yield done
            if done.pages["damaged"] > MOST_DAMAGED:
                raise ArchiveError(f"more than {MOST_DAMAGED:,} pages are damaged")

    def _next(self) -> tarfile.TarInfo | None:
        self._stream.end = self._tar.offset + _HEADER_BYTES
        member = _parsed(self._tar.next)
        # `tarfile` keeps all members, for callers that ask by name.
        self._tar.members.clear()
        if member is None:
            if self._tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise ArchiveError(_TOO_EARLY)
        elif not member.isdir() and (member.type not in _FILES or member.issparse()):
            raise ArchiveError(f"{member.name[:200]!r} is neither a file nor a directory")
        elif not 0 <= member.size <= MAX_PAGE_BYTES:
            raise ArchiveError(f"{member.name[:200]!r} has {member.size:,} bytes, as no page has")
        self._stream.end = self._tar.offset + _BUFFER_BYTES
        return member

    def _take(
        self, member: tarfile.TarInfo, at: PageAt, time_ns: int, target: PageTarget, done: Unpacked
    ) -> Fate:
        if target.has(at):
            return "present"
        try:
            page = checked(self._read(member), *at)
        except UndecodablePage:
            return "undecodable"
        except PageError as error:
            if len(done.damage) < _SHOWN:
                done.damage.append(f"{member.name}: {error}")
            return "damaged"
        result = target.write(page, time_ns, self.manifest.namespaces[at.namespace.hex()])
        if result == "written":
            return "imported"
        return "present" if result == "present" else "refused"

    def _read(self, member: tarfile.TarInfo) -> bytes:
        """Takes no more memory than came."""
        file = _parsed(lambda: self._tar.extractfile(member))
        if file is None:
            return b""
        return _parsed(lambda: b"".join(iter(partial(file.read, READ_BYTES), b"")))


def _parsed(call: Callable[[], Result]) -> Result:
    """Call `tarfile`, which raises many errors for headers that no program wrote."""
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
