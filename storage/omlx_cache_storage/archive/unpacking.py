"""Reading an archive into a directory: what is whole and wanted is published, page by page."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from omlx_cache_storage.archive.errors import ArchiveError
from omlx_cache_storage.archive.manifest import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    Document,
    Manifest,
    decode_manifest,
)
from omlx_cache_storage.archive.members import MAX_PAGE_BYTES, PageAt, checked, parse_path
from omlx_cache_storage.archive.tar import READ_BYTES, Member, Stream, TarReader
from omlx_cache_storage.errors import PageError, UndecodablePage
from omlx_cache_storage.page import Page
from omlx_cache_storage.tier import WriteResult

_SHARDS = 300
"""Directories that an archive may name for each namespace, when another program wrote it."""
_BEFORE = 4
"""Members that come before the manifest at most: its own extended headers."""
_SHOWN = 5
MOST_DAMAGED = 1000
"""An archive with more damaged pages is not read on."""

Fate = Literal["imported", "present", "refused", "undecodable", "damaged"]


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
    """A stream's archive, whose manifest has been read and checked: `pages` goes on. Raises
    ArchiveError, also when it is made, and OSError as the stream does."""

    def __init__(self, stream: Stream) -> None:
        self._tar = TarReader(stream)
        first = next(self._tar.members(_BEFORE), None)
        if first is None or first.name.removeprefix("./") != MANIFEST_FILE:
            raise ArchiveError(f"an archive of a cache begins with {MANIFEST_FILE}")
        if first.size > MAX_MANIFEST_BYTES:
            raise ArchiveError(f"{MANIFEST_FILE} has {first.size:,} bytes")
        self.manifest = decode_manifest(self._read(first))
        self._tar.skip()

    def unpack(self, target: Target) -> Iterator[Unpacked]:
        """Hand the pages to a target in their order, and yield what is done after each; a page that
        cannot be used is counted and passed over. Raises OSError as the target does."""
        counts: dict[Fate, int] = dict.fromkeys(
            ("imported", "present", "refused", "undecodable", "damaged"), 0
        )
        # Numbers take a fifth of the memory, and two pages with one are a matter of theory.
        done, seen, now = Unpacked(self.manifest, counts), set[int](), time.time_ns()
        yield done
        manifest = self.manifest
        for member in self._tar.members(manifest.pages + _SHARDS * len(manifest.namespaces)):
            if member is None:
                continue
            at = self._page(member)
            if hash(at) in seen or len(seen) >= manifest.pages:
                raise ArchiveError(f"{member.name} came twice, or is more than was announced")
            seen.add(hash(at))
            time_ns = max(0, min(member.time_ns, now))
            counts[self._take(member, at, time_ns, target, done)] += 1
            done.nbytes += member.size
            yield done
            if counts["damaged"] > MOST_DAMAGED:
                raise ArchiveError(f"more than {MOST_DAMAGED:,} pages are damaged")

    def _page(self, member: Member) -> PageAt:
        at = parse_path(member.name)
        if at.namespace not in self.manifest.namespaces:
            raise ArchiveError(f"{member.name} is of a namespace that was not announced")
        if member.size > MAX_PAGE_BYTES:
            raise ArchiveError(f"{member.name} has {member.size:,} bytes, which no page has")
        return at

    def _take(
        self, member: Member, at: PageAt, time_ns: int, target: Target, done: Unpacked
    ) -> Fate:
        if target.has(at):
            return "present"
        try:
            page = checked(self._read(member), at)
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

    def _read(self, member: Member) -> bytes:
        """Return a member's bytes; takes no more memory than came."""
        parts, left = [], member.size
        while left:
            parts.append(self._tar.read(min(left, READ_BYTES)))
            left -= len(parts[-1])
        return b"".join(parts)
