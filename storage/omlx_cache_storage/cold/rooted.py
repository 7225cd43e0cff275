"""Stamps that a restart finds, put right: no page is older than those behind it.

A process that was killed had not recorded that a chain was used again: its new deep end would
outlive its root.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from omlx_cache_storage.format.names import PARENT_HINT_BYTES, PageName
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.order import cut
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
    stamps = rooted_stamps(
        {name.id.key: number for number, name in enumerate(names) if name.id.group == PAGED},
        np.array([_number(name.parent_hint) for name in names], np.uint64),
        np.array([name.position for name in names], np.int64),
        np.array([cut(stamp_ns) for _, stamp_ns in found], np.int64),
    )
    return [(stored, stamp) for (stored, _), stamp in zip(found, stamps.tolist(), strict=True)]


def rooted_stamps(
    paged: Mapping[BlockKey, int],
    hints: npt.NDArray[np.uint64],
    positions: npt.NDArray[np.int64],
    stamps: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Return the stamps of pages, none earlier than those of the pages behind.

    `hints` says what names the page before each, `paged` where those lie: nothing is behind a page
    that is of use by itself.
    """
    if not paged:
        return stamps
    own = np.fromiter(map(_number, paged), np.uint64, len(paged))
    at = np.fromiter(paged.values(), np.intp, len(paged))
    known = np.unique(hints)
    latest = np.zeros(len(known), np.int64)
    np.maximum.at(latest, np.searchsorted(known, hints), stamps)
    behind = np.minimum(np.searchsorted(known, own), len(known) - 1)
    mine = stamps[at]
    late = (mine > SUPERSEDED_NS) & (mine < latest[behind]) & (known[behind] == own)
    if not late.any():
        return stamps
    keys = dict(zip(at.tolist(), own.tolist(), strict=True))
    return _raised(keys, hints, positions, stamps)


def _raised(
    keys: Mapping[int, int],
    hints: npt.NDArray[np.uint64],
    positions: npt.NDArray[np.int64],
    stamps: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Go from the deep ends to the roots: what one page gets, the one before it gets from it."""
    raised = stamps.copy()
    behind: dict[int, int] = {}
    deepest = np.argsort(-positions, kind="stable")
    columns = hints[deepest].tolist(), stamps[deepest].tolist()
    for row, hint, stamp in zip(deepest.tolist(), *columns, strict=True):
        latest = behind.get(keys[row], 0) if row in keys else 0
        if stamp > SUPERSEDED_NS and latest > stamp:
            stamp = raised[row] = latest
        if stamp > behind.get(hint, 0):
            behind[hint] = stamp
    return raised


def _number(key: bytes) -> int:
    return int.from_bytes(key[:PARENT_HINT_BYTES], "big")
