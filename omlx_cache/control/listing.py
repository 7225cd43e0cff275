"""Listings of pages and namespaces: the same rows from a running store and from an unused
directory. Also the choice of pages to delete: of old versions, not used lately, or too many. Reads
page headers in `details` only."""

import heapq
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from omlx_cache.control.errors import ControlError
from omlx_cache.control.replies import NamespaceRow, PageDetails, PageRow, several
from omlx_cache.control.serialization import extended
from omlx_cache_storage.cold.disk import SMALL_FILE_BYTES
from omlx_cache_storage.cold.page_reader import read_header
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.documents import Versions, label, salt, versions
from omlx_cache_storage.errors import PageError, PageUnreadable
from omlx_cache_storage.eviction.keep import age_seconds
from omlx_cache_storage.format.names import ENTRY_BYTES
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.hot_page import PageState
from omlx_cache_storage.keys import PARENT_HINT_BYTES, BlockKey
from omlx_cache_storage.page import COLD, PAGED, PageId, PageInfo, PageMeta
from omlx_cache_storage.pins import Pins
from omlx_cache_storage.tiers import Tiers

if TYPE_CHECKING:
    # They bring NumPy, which no command line waits for.
    from omlx_cache_storage.cold.catalog import ColdEntry
    from omlx_cache_storage.hot_page import Held


@dataclass(frozen=True, slots=True)
class ListedPage:
    """One page of either tier, or of both; `cold` is its file, `meta` is known of a live one."""

    namespace: BlockKey
    page: PageId
    info: PageInfo
    tiers: tuple[str, ...]
    used_ns: int
    cold: "ColdEntry | None" = None
    meta: PageMeta | None = None


def list_pages(hot: "Iterable[Held]", cold: "Iterable[ColdEntry]") -> list[ListedPage]:
    """Return every page of two tiers once, in no order."""
    merged: dict[PageId, ListedPage] = {}
    for held in hot:
        merged[held.id] = ListedPage(
            held.namespace, held.id, held.info, (held.info.tier,), held.stamp_ns, meta=held.meta
        )
    for entry in cold:
        page = ListedPage(entry.namespace, entry.page, entry.info, (COLD,), entry.used_ns, entry)
        live = merged.get(page.page)
        if live is not None:
            used_ns = max(live.used_ns, page.used_ns)
            page = replace(page, tiers=(*live.tiers, COLD), used_ns=used_ns, meta=live.meta)
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


def find_namespace(pages: Iterable[ListedPage], prefix: str) -> BlockKey:
    """Raises ControlError unless one namespace's digest begins so."""
    wanted = prefix.lower()
    matches = {p.namespace for p in pages if p.namespace.hex().startswith(wanted)}
    if len(matches) == 1:
        return matches.pop()
    if not matches:
        raise ControlError("not_found", f"no namespace begins with {prefix}")
    raise ControlError("ambiguous", several([digest.hex() for digest in matches], prefix))


def namespace_rows(
    pages: Iterable[ListedPage],
    document_of: Callable[[BlockKey], Mapping[str, object]],
    limit: int,
    created_of: Callable[[BlockKey], int | None],
) -> list[NamespaceRow]:
    """`created_of` says when a namespace came to the disk, in nanoseconds since the epoch; None
    before that."""
    found: dict[BlockKey, list[ListedPage]] = {}
    for page in pages:
        found.setdefault(page.namespace, []).append(page)
    return [
        _namespace(name, found[name], document_of(name), created_of(name))
        for name in sorted(found)[:limit]
    ]


def page_rows(pages: Iterable[ListedPage], namespace: BlockKey, limit: int) -> list[PageRow]:
    """Oldest token first."""
    now_ns = time.time_ns()
    return [_page(p, now_ns) for p in _first(limit, (p for p in pages if p.namespace == namespace))]


def detail_rows(pages: Iterable[ListedPage], key_prefix: str, limit: int) -> list[PageDetails]:
    """Read the headers of the pages whose keys begin so. One that cannot be read is in the list
    with an `error`."""
    wanted, now_ns = key_prefix.lower(), time.time_ns()
    found = (page for page in pages if page.page.key.hex().startswith(wanted))
    return [_details(page, now_ns) for page in _first(limit, found)]


def _first(limit: int, pages: Iterable[ListedPage]) -> list[ListedPage]:
    return heapq.nsmallest(
        limit, pages, key=lambda p: (p.namespace, p.info.position, p.page.group, p.page.key)
    )


def _namespace(
    name: BlockKey,
    pages: Sequence[ListedPage],
    document: Mapping[str, object],
    created_ns: int | None,
) -> NamespaceRow:
    used_ns = max(page.used_ns for page in pages)
    tokens: Counter[str] = Counter()
    for page in pages:
        tokens[page.page.group] += page.info.held
    return NamespaceRow(
        namespace=name.hex(),
        label=label(document),
        pages=len(pages),
        bytes=sum(page.info.nbytes for page in pages),
        # Layer groups cover the same tokens, so the best stocked one counts, not their sum.
        tokens=max(tokens.values()),
        groups=sorted(tokens),
        tiers=sorted({tier for page in pages for tier in page.tiers}),
        created_at=None if created_ns is None else date(created_ns, time.time_ns()),
        used_at=date(used_ns, time.time_ns()) if age_seconds(used_ns) is not None else None,
        versions=versions(document),
        salt=salt(document),
    )


def date(stamp_ns: int, latest_ns: int) -> str:
    """Return a stamp as a date of ISO 8601, in UTC and whole seconds; a later one as the latest: a
    file may say that it is of the year 300,000."""
    seconds = max(0, min(stamp_ns, latest_ns)) // 10**9
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _page(page: ListedPage, now_ns: int) -> PageRow:
    return PageRow(
        key=page.page.key.hex(),
        group=page.page.group,
        position=page.info.position,
        tokens=page.info.held,
        bytes=page.info.nbytes,
        tiers=page.tiers,
        namespace=page.namespace.hex(),
        path="" if page.cold is None else str(page.cold.path),
        age_s=age_seconds(page.used_ns, now_ns),
    )


def _details(page: ListedPage, now_ns: int) -> PageDetails:
    row, meta, header, error = _page(page, now_ns), page.meta, None, None
    if page.cold is not None:
        try:
            header = read_header(page.cold.path)
            row, meta = replace(row, bytes=page.cold.path.stat().st_size), header.meta
        except OSError as failed:
            error = f"{PageUnreadable.reason}: {page.cold.path.name}: {failed}"
        except PageError as failed:
            error = f"{failed.reason}: {failed}"
    if meta is None:
        return extended(PageDetails, row, error=error)
    return extended(
        PageDetails,
        row,
        parent=meta.parent.hex(),
        tail=meta.tail,
        codec=meta.codec,
        checksum=None if header is None else header.checksum,
        data_offset=None if header is None else header.data_offset,
        tensors=meta.tensors,
        error=error,
    )


_DIRECTORY_BYTES = SMALL_FILE_BYTES + ENTRY_BYTES
_ROOT_BYTES = 2 * _DIRECTORY_BYTES
"""The directory itself and its tag."""

Documents = Callable[[BlockKey], Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Pruning:
    """The pages to delete; a field that is None chooses nothing. `keep`: namespaces whose versions
    are known and none of these. `before_ns`: pages that were used before this stamp, the superseded
    ones among them. `to_bytes`: pages in eviction order, until those on the disk and their
    directories take no more."""

    keep: Collection[Versions] | None = None
    before_ns: int | None = None
    to_bytes: int | None = None

    @property
    def by_use(self) -> bool:
        return self.before_ns is not None or self.to_bytes is not None


class Chosen(NamedTuple):
    """Pages to delete, each by the first reason that it has; and those that would be among them if
    no pin kept them."""

    stale: list[ListedPage]
    older: list[ListedPage]
    surplus: list[ListedPage]
    pinned: list[ListedPage]

    def to_dict(self) -> dict[str, object]:
        every = [*self.stale, *self.older, *self.surplus]
        return {
            "pages": len(every),
            "bytes": sum(page.info.nbytes for page in every),
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
    """Of a chain the deep end is deleted before the root. `root_bytes` are the directory's bytes
    without any namespace; pinned pages stay."""
    keep, before_ns, now_ns = asked.keep, asked.before_ns or 0, time.time_ns()
    old = {
        name
        for name in {page.namespace for page in pages}
        if keep is not None and (needed := versions(document_of(name))) and needed not in keep
    }
    chosen, left = Chosen([], [], [], []), Footprint(root_bytes)

    def choose_one(page: ListedPage, reason: list[ListedPage]) -> None:
        is_pinned = pins.until(page.namespace, page.page.key) > now_ns
        (chosen.pinned if is_pinned else reason).append(page)
        if page.cold is not None and not is_pinned:
            left.add(page.namespace, page.page.key, page.info.nbytes, -1)

    remaining = []
    for page in sorted(pages, key=lambda page: (page.used_ns, -page.info.position, page.page)):
        if page.cold is not None:
            left.add(page.namespace, page.page.key, page.info.nbytes)
        if page.namespace in old:
            choose_one(page, chosen.stale)
        elif page.used_ns < before_ns:
            choose_one(page, chosen.older)
        elif page.cold is not None:
            remaining.append(page)
    for page in remaining:
        if asked.to_bytes is None or left.nbytes <= asked.to_bytes:
            break
        choose_one(page, chosen.surplus)
    return chosen


@dataclass(slots=True)
class Footprint:
    """The bytes that page files take of a disk, with the directories and documents that are deleted
    with the last of them; as a cold tier counts them."""

    nbytes: int = _ROOT_BYTES
    _users: Counter[tuple[BlockKey, str]] = field(default_factory=Counter)

    def add(self, namespace: BlockKey, key: BlockKey, nbytes: int, times: int = 1) -> None:
        """Count a page; -1 times, no longer."""
        self.nbytes += times * (nbytes + ENTRY_BYTES)
        # Its shard, and its namespace's directory with its documents.
        for shard, taken in ((key[:1].hex(), _DIRECTORY_BYTES), ("", 3 * _DIRECTORY_BYTES)):
            place = namespace, shard
            before = self._users[place]
            self._users[place] += times
            self.nbytes += taken * (bool(self._users[place]) - bool(before))


def _summed(pages: Collection[ListedPage]) -> dict[str, object]:
    return {
        "namespaces": sorted({page.namespace.hex() for page in pages}),
        "pages": len(pages),
        "bytes": sum(page.info.nbytes for page in pages),
    }


COMPARE_SECONDS = 2.0


class Disagreement(NamedTuple):
    """The pages on which the tiers disagree. `unbacked`: pages that memory has as clean and the
    disk has not. `orphans`: pages on the disk whose parent block neither tier has, so that nothing
    can be restored from them. A page that was damaged or lost leaves orphans."""

    unbacked: list[PageId]
    orphans: list[PageId]


def compare(tiers: Tiers) -> Disagreement:
    """Compare memory with the disk, page by page; waits two seconds at most for the writer. Commits
    may go on."""
    hot, cold, writer = tiers.hot, tiers.cold, tiers.writer
    if cold is None or writer is None:
        return Disagreement([], [])
    before = set(_absent(hot, cold))
    # Pages in flight from the disk to memory arrive meanwhile.
    settled = before and writer.settle(COMPARE_SECONDS)
    unbacked = [page for page in _absent(hot, cold) if settled and page in before]
    return Disagreement(unbacked, _orphans(hot, cold))


def _absent(hot: HotTier, cold: ColdTier) -> list[PageId]:
    """Return the pages that memory has as clean and the disk does not have; one that it hides now
    counts as there."""
    clean = [held.id for held in hot.entries() if held.state is PageState.CLEAN]
    absent = [page for page in clean if cold.info(page) is None]
    hidden = cold.hidden(absent)
    return [page for page in absent if page not in hidden]


def _orphans(hot: HotTier, cold: ColdTier) -> list[PageId]:
    files, held = cold.records(), hot.entries()
    known = {file.namespace for file in files} | {file.id.key for file in files}
    known |= {page.namespace for page in held} | {page.id.key for page in held}
    hints = {key[:PARENT_HINT_BYTES] for key in known}
    paged = {file.id.key: file.id for file in files if file.id.group == PAGED}
    return [paged[f.id.key] for f in files if f.hint not in hints and f.id.key in paged]
