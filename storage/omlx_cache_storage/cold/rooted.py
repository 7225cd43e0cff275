"""Stamps that a restart finds, put right: no page is older than those behind it.

A process that was killed had not recorded that a chain was used again: its new deep end would
outlive its root.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from omlx_cache_storage.cold.records import StoredPage
from omlx_cache_storage.format.names import PARENT_HINT_BYTES
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.order import cut
from omlx_cache_storage.page import PAGED
from omlx_cache_storage.recency import SUPERSEDED_NS


def rooted(files: Iterable[tuple[StoredPage, int]]) -> list[tuple[StoredPage, int]]:
    """Return the files with their stamps, no page's earlier than those of the pages behind it."""
    found = list(files)
    names = [stored.name for stored, _ in found]
    stamps = rooted_stamps(
        [name.id.key for name in names],
        {name.id.key: number for number, name in enumerate(names) if name.id.group == PAGED},
        np.array([_number(name.parent_hint) for name in names], np.uint64),
        np.array([name.position for name in names], np.int64),
        np.array([cut(stamp_ns) for _, stamp_ns in found], np.int64),
    )
    return [(stored, stamp) for (stored, _), stamp in zip(found, stamps.tolist(), strict=True)]


def rooted_stamps(
    keys: Sequence[BlockKey],
    paged_pages: Mapping[BlockKey, int],
    hints: npt.NDArray[np.uint64],
    positions: npt.NDArray[np.int64],
    stamps: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Return the stamps of pages, none earlier than those of the pages behind; `paged_pages` has
    the places of those that are of use to others, `hints` what names the page before each."""
    if not paged_pages:
        return stamps
    own = np.fromiter(map(_number, keys), np.uint64, len(keys))
    paged = np.zeros(len(keys), np.bool_)
    paged[np.fromiter(paged_pages.values(), np.intp, len(paged_pages))] = True
    known, which = np.unique(hints, return_inverse=True)
    latest = np.zeros(len(known), np.int64)
    np.maximum.at(latest, which, stamps)
    at = np.minimum(np.searchsorted(known, own), len(known) - 1)
    late = paged & (known[at] == own) & (stamps > SUPERSEDED_NS) & (stamps < latest[at])
    return _raised(own, paged, hints, positions, stamps) if late.any() else stamps


def _raised(
    own: npt.NDArray[np.uint64],
    paged: npt.NDArray[np.bool_],
    hints: npt.NDArray[np.uint64],
    positions: npt.NDArray[np.int64],
    stamps: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Go from the deep ends to the roots: what one page gets, the one before it gets from it."""
    raised = stamps.copy()
    behind: dict[int, int] = {}
    deepest = np.argsort(-positions, kind="stable")
    columns = (column[deepest].tolist() for column in (own, paged, hints, stamps))
    for row, key, is_paged, hint, stamp in zip(deepest.tolist(), *columns, strict=True):
        if is_paged and stamp > SUPERSEDED_NS and (latest := behind.get(key, 0)) > stamp:
            stamp = raised[row] = latest
        if stamp > behind.get(hint, 0):
            behind[hint] = stamp
    return raised


def _number(key: bytes) -> int:
    return int.from_bytes(key[:PARENT_HINT_BYTES], "big")
