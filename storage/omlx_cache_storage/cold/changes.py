"""What the ledger says of a directory: records, as values and as bytes.

A record is a msgpack list that begins with its kind. Fields are only ever added at the end, and a
kind that is not known is passed over, so that versions of the software share a directory.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgpack

from omlx_cache_storage.format.names import PARENT_HINT_BYTES, PageName, StoredPage
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId


class Reserved(NamedTuple):
    """A page is being written under a temporary name, in its own shard; it counts `page.nbytes`,
    and its namespace's document takes `described` bytes."""

    temporary: str
    page: StoredPage
    described: int


class Added(NamedTuple):
    """A page has its name. Nothing is written under the temporary one any more ("" for none)."""

    temporary: str
    page: StoredPage
    stamp_ns: int
    described: int


class Cancelled(NamedTuple):
    """What was reserved under a temporary name was not published."""

    temporary: str


class Removed(NamedTuple):
    """The file of a page is gone, and `why`: a word of `Departures`."""

    page: StoredPage
    why: str


class Emptied(NamedTuple):
    """A directory is gone: a namespace's shard, or with "" the namespace's own."""

    namespace: BlockKey
    shard: str


class Demoted(NamedTuple):
    """Pages are the first to leave: they have this stamp."""

    stamp_ns: int
    pages: tuple[PageId, ...]


class Rebudgeted(NamedTuple):
    """The file that has the budget was changed."""


class Removing(NamedTuple):
    """The files of pages are about to be deleted; `Removed` follows, but for a kill."""

    pages: tuple[StoredPage, ...]


class Repinned(NamedTuple):
    """The file that has the pins was changed."""


Change = (
    Reserved | Added | Cancelled | Removed | Emptied | Demoted | Rebudgeted | Removing | Repinned
)
_KINDS: tuple[type[Change], ...] = (
    Reserved,
    Added,
    Cancelled,
    Removed,
    Emptied,
    Demoted,
    Rebudgeted,
    Removing,
    Repinned,
)
_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}


def encode(change: Change) -> bytes:
    """Return a change's record."""
    match change:
        case Reserved(temporary, page, described):
            fields = [temporary, described, *_page_fields(page)]
        case Added(temporary, page, stamp_ns, described):
            fields = [temporary, stamp_ns, described, *_page_fields(page)]
        case Removed(page, why):
            fields = [why, *_page_fields(page)]
        case Demoted(stamp_ns, pages):
            fields = [stamp_ns, [list(page) for page in pages]]
        case Removing(pages):
            fields = [[_page_fields(page) for page in pages]]
        case _:
            fields = list(change)
    raw: bytes = msgpack.packb([_NUMBERS[type(change)], *fields])
    return raw


def decode(records: Iterable[bytes]) -> list[Change]:
    """Return the changes of records; those of a kind or shape that is not known are left out."""
    found = []
    for record in records:
        try:
            change = _decode(msgpack.unpackb(record))
        except (ValueError, TypeError, IndexError, msgpack.UnpackException):
            continue
        if change is not None:
            found.append(change)
    return found


def _decode(fields: list[object]) -> Change | None:
    match fields:
        case [0, str(temporary), int(described), *rest]:
            return Reserved(temporary, _page(rest), described)
        case [1, str(temporary), int(stamp_ns), int(described), *rest]:
            return Added(temporary, _page(rest), stamp_ns, described)
        case [2, str(temporary), *_]:
            return Cancelled(temporary)
        case [3, str(why), *rest]:
            return Removed(_page(rest), why)
        case [4, bytes(namespace), str(shard), *_]:
            return Emptied(BlockKey(namespace), shard)
        case [5, int(stamp_ns), list(pages), *_]:
            return Demoted(stamp_ns, tuple(PageId(BlockKey(key), group) for key, group in pages))
        case [6, *_]:
            return Rebudgeted()
        case [7, list(pages), *_]:
            return Removing(tuple(map(_page, pages)))
        case [8, *_]:
            return Repinned()
    return None


def _page_fields(page: StoredPage) -> list[object]:
    (key, group), hint, position, held, tail = page.name
    return [page.namespace, key, group, hint, position, held, tail, page.nbytes]


_TYPES = (bytes, bytes, str, bytes, int, int, bool, int)


def _page(fields: list[object]) -> StoredPage:
    # Not by a pattern, which takes longer than all the rest.
    if tuple(map(type, fields[:8])) != _TYPES:
        raise ValueError("no page")
    known: tuple[bytes, bytes, str, bytes, int, int, bool, int] = tuple(fields[:8])  # type: ignore[assignment]
    namespace, key, group, hint, position, held, tail, nbytes = known
    if len(hint) != PARENT_HINT_BYTES or len(namespace) != 32:
        raise ValueError("no page")
    name = PageName(PageId(BlockKey(key), group), hint, position, held, tail)
    return StoredPage(BlockKey(namespace), name, nbytes)
