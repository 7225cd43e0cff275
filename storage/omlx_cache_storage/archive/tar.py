"""Reading a tar archive that anybody may have written, from a stream, with bounds for everything.

Regular files with names, sizes and times, in the POSIX and GNU forms; directories say nothing.
Links, devices and sparse files have no place in an archive of a cache, and end the reading.
`tarfile` would take into memory whatever an extended header announces.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from omlx_cache_storage.archive.errors import ArchiveError, TruncatedArchive

BLOCK = 512
READ_BYTES = 1024 * 1024
"""Read at a time: memory grows with what came, not with what was announced."""
MAX_EXTENDED_BYTES = 64 * 1024
"""What an extended header may take: names and times, and what other programs add."""
_TIME = re.compile(r"(-?\d{1,12})(?:\.(\d{1,9})\d*)?", re.ASCII)
_SIZE = re.compile(r"\d{1,15}", re.ASCII)
_FILE, _DIRECTORY, _EXTENDED, _LONG_NAME = (b"0", b"\0"), b"5", b"x", b"L"


class Stream(Protocol):
    """Bytes that come in order; fewer than were asked for at the end only."""

    def read(self, size: int, /) -> bytes: ...


class Member(NamedTuple):
    """A regular file: its name as it was written, its size and its time."""

    name: str
    size: int
    time_ns: int


class _Extended(NamedTuple):
    """What comes before a header and counts instead of it."""

    name: str | None = None
    size: int | None = None
    time_ns: int | None = None


class TarReader:
    """Yields the members of a stream, each to be read or passed over before the next one. One
    thread; raises ArchiveError, and OSError as the stream does."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._left = 0
        self._padding = 0
        self._has_begun = False

    def members(self, most: int) -> Iterator[Member | None]:
        """Yield regular files, and None for a directory; raises ArchiveError for anything else and
        for more than `most`."""
        count, extended = 0, _Extended()
        while (header := self._header()) is not None:
            count += 1
            if count > 2 * most:
                raise ArchiveError(
                    f"there are more than {most:,} members, and fewer were announced"
                )
            kind, size = header[156:157], _octal(header[124:136], "size")
            if kind in (_EXTENDED, _LONG_NAME):
                extended = self._extended(kind, size, extended)
                continue
            name = _name(header) if extended.name is None else extended.name
            size = size if extended.size is None else extended.size
            if kind == _DIRECTORY and not size:
                yield None
            elif kind in _FILE:
                time_ns = extended.time_ns
                if time_ns is None:
                    time_ns = _octal(header[136:148], "time") * 10**9
                self._left, self._padding = size, -size % BLOCK
                yield Member(name, size, time_ns)
                self.skip()
            else:
                raise ArchiveError(f"{name[:200]!r} is neither a file nor a directory")
            extended = _Extended()

    def read(self, size: int) -> bytes:
        """Return the next bytes of the member, `size` of them; raises ArchiveError for a member
        that has fewer."""
        if size > self._left:
            raise ArchiveError("a file has fewer bytes than it says itself")
        self._left -= size
        return self._exactly(size)

    def skip(self) -> None:
        """Pass over what is left of the member."""
        while self._left:
            self.read(min(self._left, READ_BYTES))
        self._exactly(self._padding)
        self._padding = 0

    def _header(self) -> bytes | None:
        """Return the next header, None at the end mark."""
        try:
            header = self._exactly(BLOCK)
        except TruncatedArchive:
            if self._has_begun:
                raise
            raise TruncatedArchive(
                "the archive ends too early: it is empty, or no tar archive"
            ) from None
        self._has_begun = True
        if not header.strip(b"\0"):
            if self._exactly(BLOCK).strip(b"\0"):
                raise ArchiveError("a block of zeros stands between members")
            return None
        said = _octal(header[148:156], "checksum")
        if sum(header[:148]) + 8 * 32 + sum(header[156:]) != said:
            raise ArchiveError("this is no tar archive, or a damaged one: a header's sum is wrong")
        return header

    def _extended(self, kind: bytes, size: int, before: _Extended) -> _Extended:
        if size > MAX_EXTENDED_BYTES:
            raise ArchiveError(f"an extended header of {size:,} bytes is none of a cache's")
        raw = self._exactly(size)
        self._exactly(-size % BLOCK)
        if kind == _LONG_NAME:
            return before._replace(name=_text(raw.rstrip(b"\0")))
        return _parse_extended(raw, before)

    def _exactly(self, size: int) -> bytes:
        raw = self._stream.read(size) if size else b""
        while len(raw) < size:
            more = self._stream.read(size - len(raw))
            if not more:
                raise TruncatedArchive("the archive ends too early")
            raw += more
        return raw


def _parse_extended(raw: bytes, found: _Extended) -> _Extended:
    """Return what records of the form `length name=value\\n` say."""
    while raw:
        digits, space, _ = raw[:8].partition(b" ")
        length = int(digits) if space and digits.isdigit() else 0
        record, raw = raw[len(digits) + 1 : length], raw[length:]
        if length <= len(digits) + 1 or record[-1:] != b"\n":
            raise ArchiveError("an extended header cannot be read")
        name, _, value = record[:-1].partition(b"=")
        if name == b"path":
            found = found._replace(name=_text(value))
        elif name == b"size":
            if _SIZE.fullmatch(_text(value)) is None:
                raise ArchiveError("an extended header has a size that is none")
            found = found._replace(size=int(value))
        elif name == b"mtime":
            found = found._replace(time_ns=_time_ns(_text(value)))
        elif name.startswith(b"GNU.sparse"):
            raise ArchiveError("a sparse file has no place here")
    return found


def _time_ns(text: str) -> int:
    match = _TIME.fullmatch(text)
    if match is None:
        raise ArchiveError("an extended header has a time that is none")
    return int(match[1]) * 10**9 + int((match[2] or "").ljust(9, "0"))


def _octal(field: bytes, what: str) -> int:
    digits = field.strip(b" \0")
    if not digits:
        return 0
    if not all(b"0"[0] <= digit <= b"7"[0] for digit in digits):
        raise ArchiveError(f"this is no tar archive, or a damaged one: a {what} cannot be read")
    return int(digits, 8)


def _name(header: bytes) -> str:
    name, prefix = header[:100].rstrip(b"\0"), header[345:500].rstrip(b"\0")
    is_posix = header[257:263] == b"ustar\0"
    return _text(prefix + b"/" + name if prefix and is_posix else name)


def _text(raw: bytes) -> str:
    try:
        return raw.decode("ascii")
    except UnicodeDecodeError:
        raise ArchiveError(f"{raw[:200]!r} is no name of a cache's file") from None
