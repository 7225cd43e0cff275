"""The pages of one tier as columns, one row a page: what a million of them are looked through by,
without an object for each."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from omlx_cache_storage.keys import PARENT_HINT_BYTES, BlockKey

Numbers = npt.NDArray[np.int64]


class PageColumns(NamedTuple):
    """A copy, which belongs to who asked for it. `keys` has the pages' keys as objects,
    `hints` what a name knows of the parent's, as a number; `namespace` counts in `namespaces`.
    `pinned` are those that a pin of the directory keeps, None for no page."""

    keys: npt.NDArray[Any]
    hints: npt.NDArray[np.uint64]
    positions: Numbers
    held: Numbers
    nbytes: Numbers
    stamps: Numbers
    namespaces: Sequence[BlockKey]
    namespace: npt.NDArray[np.uint32]
    pinned: npt.NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.keys)


def hint_numbers(keys: Iterable[bytes]) -> npt.NDArray[np.uint64]:
    """Return by which number the name of a page after each key tells of it."""
    raw = b"".join([key[:PARENT_HINT_BYTES] for key in keys])
    return np.frombuffer(raw, ">u8").astype(np.uint64)
