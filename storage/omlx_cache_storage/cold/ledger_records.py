"""The records of a directory's ledger, as values and as bytes. A record is a msgpack list that
begins with its kind. Fields are only ever added at the end, and a kind that is not known is passed
over, so that versions of the software share a directory."""

import contextlib
from itertools import chain
from typing import NamedTuple, cast, get_args

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
    """The page reserved under a temporary name was not published."""

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
_KINDS: tuple[type[Change], ...] = get_args(Change)
"""A record begins with the place of its kind in this; new ones come last."""


def encode(change: Change) -> bytes:
    fields: list[object] = [_KINDS.index(type(change))]
    pages: list[list[object]] = []
    for value in change.pages if isinstance(change, Removing) else change:
        if isinstance(value, StoredPage):
            (key, group), hint, position, held, tail = value.name
            pages.append([value.namespace, key, group, hint, position, held, tail, value.nbytes])
        else:
            fields.append(value)
    fields += [pages] if isinstance(change, Removing) else chain(*pages)
    raw: bytes = msgpack.packb(fields)
    return raw


def decode(record: bytes) -> Change | None:
    with contextlib.suppress(ValueError, TypeError, msgpack.UnpackException):
        match msgpack.unpackb(record):
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
                return Demoted(stamp_ns, tuple(PageId(BlockKey(key), of) for key, of in pages))
            case [6, *_]:
                return Rebudgeted()
            case [7, list(pages), *_]:
                return Removing(tuple(map(_page, pages)))
            case [8, *_]:
                return Repinned()
    return None


_Fields = tuple[bytes, bytes, str, bytes, int, int, bool, int]


def _page(fields: list[object]) -> StoredPage:
    # Not by a pattern, which takes longer than all other steps.
    known = cast(_Fields, fields[:8])
    namespace, key, group, hint, position, held, tail, nbytes = known
    are_sound = tuple(map(type, known)) == get_args(_Fields)
    if not are_sound or len(hint) != PARENT_HINT_BYTES or len(namespace) != 32:
        raise ValueError("no page")
    return StoredPage(
        BlockKey(namespace),
        PageName(PageId(BlockKey(key), group), hint, position, held, tail),
        nbytes,
    )
