"""Stamps that a restart finds, put right: no page is older than those behind it.

A process that was killed had not recorded that a chain was used again: its new deep end would
outlive its root.
"""

from collections.abc import Iterable
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from omlx_cache_storage.format.names import PARENT_HINT_BYTES, PageName
from omlx_cache_storage.order import Rows, cut
from omlx_cache_storage.page import PAGED
from omlx_cache_storage.recency import SUPERSEDED_NS


class Named(Protocol):
    """A page file, whatever else is known of it."""

    @property
    def name(self) -> PageName: ...


AnyFile = TypeVar("AnyFile", bound=Named)


def rooted(files: Iterable[tuple[AnyFile, int]]) -> list[tuple[AnyFile, int]]:
    """Return the files with their stamps, no page's earlier than those of the pages behind it."""
    found = list(files)
    names = [stored.name for stored, _ in found]
    paged = [number for number, name in enumerate(names) if name.id.group == PAGED]
    stamps = rooted_stamps(
        np.array(paged, np.int32),
        np.array([_number(names[number].id.key) for number in paged], np.uint64),
        np.array([_number(name.parent_hint) for name in names], np.uint64),
        np.array([name.position for name in names], np.int64),
        np.array([cut(stamp_ns) for _, stamp_ns in found], np.int64),
    )
    return [(stored, stamp) for (stored, _), stamp in zip(found, stamps.tolist(), strict=True)]


def rooted_stamps(
    paged: Rows,
    prefixes: npt.NDArray[np.uint64],
    hints: npt.NDArray[np.uint64],
    positions: npt.NDArray[np.int64],
    stamps: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Return the stamps of pages, none earlier than those of the pages behind.

    `hints` says what names the page before each; `paged` are the rows of those that may be that,
    and `prefixes` what names them: nothing is behind a page that is of use by itself.
    """
    if not len(paged):
        return stamps
    before = _before(paged, prefixes, hints)
    # Who is superseded is to leave, whoever is behind; and a name may say anything.
    linked = (before >= 0) & (stamps > SUPERSEDED_NS)
    linked &= (stamps[before] > SUPERSEDED_NS) & (positions[before] < positions)
    if not (stamps > stamps[before])[linked].any():
        return stamps
    before[~linked] = -1
    return _raised(before, stamps)


def _before(paged: Rows, prefixes: npt.NDArray[np.uint64], hints: npt.NDArray[np.uint64]) -> Rows:
    """Return the row of the page before each, -1 for one that is not here."""
    order = np.argsort(prefixes).astype(np.int32)
    known = prefixes[order]
    at = np.minimum(np.searchsorted(known, hints), len(known) - 1).astype(np.int32)
    before = paged[order[at]]
    before[known[at] != hints] = -1
    return before


def _raised(before: Rows, stamps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Give each page the latest stamp behind it: of pages at most one, two, four... steps behind.

    `before` is used up: it has the page so many steps before each.
    """
    raised = stamps.copy()
    while len(rows := np.flatnonzero(before >= 0)):
        ahead = before[rows]
        np.maximum.at(raised, ahead, raised[rows])
        before[rows] = before[ahead]
    return raised


def _number(key: bytes) -> int:
    return int.from_bytes(key[:PARENT_HINT_BYTES], "big")
