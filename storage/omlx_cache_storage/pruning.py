"""Choosing the pages that a person wants gone: of old versions, not used lately, or too many.

One choice for a running store and for a directory that nobody uses. Reads no disk.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from omlx_cache_storage.cold.records import SMALL_FILE_BYTES
from omlx_cache_storage.documents import Versions, versions
from omlx_cache_storage.format.names import ENTRY_BYTES, shard_of
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.listing import ListedPage

_DIRECTORY_BYTES = SMALL_FILE_BYTES + ENTRY_BYTES
_ROOT_BYTES = 2 * _DIRECTORY_BYTES
"""The directory itself and its tag."""

IsPinned = Callable[[ListedPage], bool]
Documents = Callable[[BlockKey], Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Pruning:
    """What shall go; each that is None chooses nothing.

    `keep`: namespaces whose versions are known and none of these. `before_ns`: pages that were
    used before this stamp, the superseded ones among them. `to_bytes`: pages in eviction order,
    until those on the disk and their directories take no more.
    """

    keep: Collection[Versions] | None = None
    before_ns: int | None = None
    to_bytes: int | None = None

    @property
    def by_use(self) -> bool:
        """True when the last uses of pages decide."""
        return self.before_ns is not None or self.to_bytes is not None


class Chosen(NamedTuple):
    """Pages to delete, each named once: by the first reason that it has; and pages that would be
    among them if no pin kept them."""

    stale: list[ListedPage]
    older: list[ListedPage]
    surplus: list[ListedPage]
    pinned: list[ListedPage]

    def to_dict(self) -> dict[str, object]:
        """Return counts and bytes for each reason, as plain values."""
        every = [*self.stale, *self.older, *self.surplus]
        return {
            "pages": len(every),
            "bytes": sum(page.nbytes for page in every),
            "stale": _summed(self.stale),
            "older": _summed(self.older),
            "surplus": _summed(self.surplus),
            "pinned": _summed(self.pinned),
        }


def choose(
    pages: Collection[ListedPage],
    asked: Pruning,
    document_of: Documents,
    root_bytes: int = _ROOT_BYTES,
    is_pinned: IsPinned = lambda page: False,
) -> Chosen:
    """Return which of all pages go. Of a chain the deep end goes before the root. `root_bytes` are
    what the directory takes without any namespace; what is pinned there stays."""
    old = _stale_namespaces({page.namespace for page in pages}, asked.keep, document_of)
    before_ns = asked.before_ns or 0
    chosen = Chosen([], [], [], [])
    left = Footprint(root_bytes)
    remaining = []
    for page in sorted(pages, key=_eviction_order):
        goes = page.namespace in old or page.used_ns < before_ns
        if goes and is_pinned(page):
            chosen.pinned.append(page)
            if page.cold is not None:
                left.add(page)
        elif page.namespace in old:
            chosen.stale.append(page)
        elif page.used_ns < before_ns:
            chosen.older.append(page)
        elif page.cold is not None:
            left.add(page)
            remaining.append(page)
    if asked.to_bytes is not None:
        for page in remaining:
            if left.nbytes <= asked.to_bytes:
                break
            if is_pinned(page):
                chosen.pinned.append(page)
                continue
            left.remove(page)
            chosen.surplus.append(page)
    return chosen


@dataclass(slots=True)
class Footprint:
    """What page files take of a disk, with the directories and documents that go with the last
    of them; as a cold tier counts it."""

    nbytes: int = _ROOT_BYTES
    _users: Counter[tuple[BlockKey, str]] = field(default_factory=Counter)

    def add(self, page: ListedPage) -> None:
        self.nbytes += page.nbytes + ENTRY_BYTES
        for place, nbytes in _places(page):
            self.nbytes += 0 if self._users[place] else nbytes
            self._users[place] += 1

    def remove(self, page: ListedPage) -> None:
        self.nbytes -= page.nbytes + ENTRY_BYTES
        for place, nbytes in _places(page):
            self._users[place] -= 1
            self.nbytes -= 0 if self._users[place] else nbytes


def _places(page: ListedPage) -> Iterable[tuple[tuple[BlockKey, str], int]]:
    """Yield a page's shard, and its namespace's directory with its document."""
    yield (page.namespace, shard_of(page.page.key)), _DIRECTORY_BYTES
    yield (page.namespace, ""), 2 * _DIRECTORY_BYTES


def _stale_namespaces(
    namespaces: Collection[BlockKey], keep: Collection[Versions] | None, document_of: Documents
) -> set[BlockKey]:
    if keep is None:
        return set()
    known = {name: versions(document_of(name)) for name in namespaces}
    return {name for name, needed in known.items() if needed and needed not in keep}


def _eviction_order(page: ListedPage) -> tuple[int, int, object]:
    return page.used_ns, -page.position, page.page


def _summed(pages: Collection[ListedPage]) -> dict[str, object]:
    return {
        "namespaces": sorted({page.namespace.hex() for page in pages}),
        "pages": len(pages),
        "bytes": sum(page.nbytes for page in pages),
    }
