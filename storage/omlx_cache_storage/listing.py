"""Listings of pages and namespaces for people and programs: the same rows from a running store and
from a directory that nobody uses. And the choice of those that a person wants gone: of old
versions, not used lately, or too many. Reads page headers only in `details`, and nothing else."""

import heapq
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from omlx_cache_storage.cold.disk import SMALL_FILE_BYTES
from omlx_cache_storage.cold.reader import describe
from omlx_cache_storage.documents import Versions, label, salt, versions
from omlx_cache_storage.errors import CacheError, PageError
from omlx_cache_storage.eviction.keep import age_seconds
from omlx_cache_storage.format.names import ENTRY_BYTES, shard_of
from omlx_cache_storage.hints import Pins
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId, PageInfo, PageMeta

if TYPE_CHECKING:
    # They bring NumPy, which no command line waits for.
    from omlx_cache_storage.cold.catalog import ColdEntry
    from omlx_cache_storage.hot_page import Held


@dataclass(frozen=True, slots=True)
class ListedPage:
    """One page of either tier, or of both; `cold` is its file, `meta` is known of a live one."""

    namespace: BlockKey
    page: PageId
    position: int
    tokens: int
    nbytes: int
    tiers: tuple[str, ...]
    used_ns: int
    cold: "ColdEntry | None" = None
    meta: PageMeta | None = None

    @property
    def path(self) -> Path | None:
        """Where the file lies; made when it is asked for."""
        return None if self.cold is None else self.cold.path


def list_pages(hot: "Iterable[Held]", cold: "Iterable[ColdEntry]") -> list[ListedPage]:
    """Return every page of two tiers once, in no order."""
    merged = {
        held.id: _listed(held.id, held.info, held.namespace, held.stamp_ns, meta=held.meta)
        for held in hot
    }
    for entry in cold:
        page = _listed(entry.page, entry.info, entry.namespace, entry.used_ns, cold=entry)
        live = merged.get(page.page)
        if live is not None:
            used_ns = max(live.used_ns, page.used_ns)
            page = replace(page, tiers=(*live.tiers, "cold"), used_ns=used_ns, meta=live.meta)
        merged[page.page] = page
    return list(merged.values())


def used_by_anybody(pages: Iterable[ListedPage], files: "Iterable[ColdEntry]") -> list[ListedPage]:
    """Return pages with the later of two stamps: their own, and that of their file, which other
    processes may have used."""
    stamps = {entry.page: entry.used_ns for entry in files}
    return [
        replace(page, used_ns=stamps[page.page])
        if stamps.get(page.page, 0) > page.used_ns
        else page
        for page in pages
    ]


def _listed(
    page: PageId,
    info: PageInfo,
    namespace: BlockKey,
    used_ns: int,
    *,
    cold: "ColdEntry | None" = None,
    meta: PageMeta | None = None,
) -> ListedPage:
    where = (info.position, info.held, info.nbytes, (info.tier,))
    return ListedPage(namespace, page, *where, used_ns, cold, meta)


Row = dict[str, object]
"""Plain values, so that a row is the same before and after a socket or a JSON document."""

_SHOWN_DIGITS = 16
_SHOWN_MATCHES = 5


class NoSuchNamespace(CacheError):
    """No namespace begins with a prefix, or more than one does: `matches` are their digests."""

    def __init__(self, prefix: str, matches: Sequence[str]) -> None:
        what = "no namespace begins" if not matches else f"{len(matches)} namespaces begin"
        shown = [digest[:_SHOWN_DIGITS] for digest in matches[:_SHOWN_MATCHES]]
        more = ["..."] if len(matches) > len(shown) else []
        super().__init__(
            f"{what} with {prefix}" + (": " if shown else "") + ", ".join(shown + more)
        )
        self.matches = matches


def find_namespace(pages: Iterable[ListedPage], prefix: str) -> BlockKey:
    """Return the one namespace whose digest begins so; raises NoSuchNamespace."""
    wanted = prefix.lower()
    matches = {p.namespace for p in pages if p.namespace.hex().startswith(wanted)}
    if len(matches) != 1:
        raise NoSuchNamespace(prefix, sorted(digest.hex() for digest in matches))
    return matches.pop()


def namespace_rows(
    pages: Iterable[ListedPage],
    document_of: Callable[[BlockKey], Mapping[str, object]],
    limit: int,
    created_of: Callable[[BlockKey], int | None],
) -> list[Row]:
    """Return a row for each namespace that has pages, by digest.

    `created_of` says when it came to the disk, in nanoseconds since the epoch; None before that.
    """
    found: dict[BlockKey, list[ListedPage]] = {}
    for page in pages:
        found.setdefault(page.namespace, []).append(page)
    return [
        _namespace(name, found[name], document_of(name), created_of(name))
        for name in sorted(found)[:limit]
    ]


def page_rows(pages: Iterable[ListedPage], namespace: BlockKey, limit: int) -> list[Row]:
    """Return a row for each page of a namespace, oldest token first."""
    now_ns = time.time_ns()
    return [_page(p, now_ns) for p in _first(limit, (p for p in pages if p.namespace == namespace))]


def detail_rows(pages: Iterable[ListedPage], key_prefix: str, limit: int) -> list[Row]:
    """Return what is known of the pages whose keys begin so; reads their files' headers.

    A page that cannot be read is in the list with an `error`.
    """
    wanted, now_ns = key_prefix.lower(), time.time_ns()
    found = (page for page in pages if page.page.key.hex().startswith(wanted))
    return [_details(page, now_ns) for page in _first(limit, found)]


def _first(limit: int, pages: Iterable[ListedPage]) -> list[ListedPage]:
    return heapq.nsmallest(
        limit, pages, key=lambda p: (p.namespace, p.position, p.page.group, p.page.key)
    )


def _namespace(
    name: BlockKey,
    pages: Sequence[ListedPage],
    document: Mapping[str, object],
    created_ns: int | None,
) -> Row:
    used_ns = max(page.used_ns for page in pages)
    tokens: dict[str, int] = {}
    for page in pages:
        tokens[page.page.group] = tokens.get(page.page.group, 0) + page.tokens
    return {
        "namespace": name.hex(),
        "label": label(document),
        "pages": len(pages),
        "bytes": sum(page.nbytes for page in pages),
        # Layer groups cover the same tokens, so the best stocked one counts, not their sum.
        "tokens": max(tokens.values()),
        "groups": sorted(tokens),
        "tiers": sorted({tier for page in pages for tier in page.tiers}),
        "created_at": None if created_ns is None else _date(created_ns),
        "used_at": _date(used_ns) if age_seconds(used_ns) is not None else None,
        "versions": versions(document),
        "salt": salt(document),
    }


def _date(stamp_ns: int) -> str:
    """Return a stamp as a date of ISO 8601, in UTC and whole seconds."""
    # A file may say that it is of the year 300,000.
    seconds = max(0, min(stamp_ns, time.time_ns())) // 10**9
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _page(page: ListedPage, now_ns: int) -> Row:
    """Return a page's row; `age_s` is None for one that is superseded and leaves first."""
    return {
        "key": page.page.key.hex(),
        "group": page.page.group,
        "position": page.position,
        "tokens": page.tokens,
        "bytes": page.nbytes,
        "tiers": list(page.tiers),
        "namespace": page.namespace.hex(),
        "path": "" if page.cold is None else str(page.path),
        "age_s": age_seconds(page.used_ns, now_ns),
    }


def _details(page: ListedPage, now_ns: int) -> Row:
    """Return what a page's file says of itself, else what the hot tier knows."""
    details = _page(page, now_ns)
    if page.path is not None:
        try:
            return details | describe(page.path)
        except PageError as error:
            details["error"] = f"{error.reason}: {error}"
    if page.meta is not None:
        details |= {
            "parent": page.meta.parent.hex(),
            "tail": page.meta.tail,
            "codec": page.meta.codec,
            "checksum": None,
            "data_offset": None,
            "tensors": [
                {"name": t.name, "dtype": t.dtype, "shape": list(t.shape)}
                for t in page.meta.tensors
            ],
        }
    return details


_DIRECTORY_BYTES = SMALL_FILE_BYTES + ENTRY_BYTES
_ROOT_BYTES = 2 * _DIRECTORY_BYTES
"""The directory itself and its tag."""

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
    pins: Pins,
    root_bytes: int = _ROOT_BYTES,
) -> Chosen:
    """Return which of all pages go. Of a chain the deep end goes before the root. `root_bytes` are
    what the directory takes without any namespace; what is pinned stays."""
    old = _stale_namespaces({page.namespace for page in pages}, asked.keep, document_of)
    before_ns, now_ns = asked.before_ns or 0, time.time_ns()
    chosen = Chosen([], [], [], [])
    left = Footprint(root_bytes)
    remaining = []
    for page in sorted(pages, key=_eviction_order):
        goes = page.namespace in old or page.used_ns < before_ns
        if goes and pins.until(page.namespace, page.page.key) > now_ns:
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
            if pins.until(page.namespace, page.page.key) > now_ns:
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
