"""The sequences that were inserted, by type: what mlx-lm's server logs about its cache."""

from collections import OrderedDict
from typing import NamedTuple

from omlx_cache.store import BlockStore
from omlx_cache_storage.page import PageId

TYPES = ("assistant", "user", "system")
"""Answers are forgotten first and system prompts last, as in mlx-lm's own cache."""
REMEMBERED = 256


class _Inserted(NamedTuple):
    cache_type: str
    nbytes: int


class StoredSequences:
    """Counts sequences whose last page is still in a tier. The newest 256 are remembered.

    One thread at a time uses it.
    """

    def __init__(self, store: BlockStore) -> None:
        self._store = store
        self._sequences: OrderedDict[PageId, _Inserted] = OrderedDict()

    def add(self, end: PageId, cache_type: str, nbytes: int) -> None:
        """Note a sequence by its last page, and the bytes that it added."""
        self._sequences[end] = _Inserted(cache_type, nbytes)
        self._sequences.move_to_end(end)
        while len(self._sequences) > REMEMBERED:
            self._sequences.popitem(last=False)

    def __len__(self) -> int:
        return len(self._live())

    def keep_newest(self, count: int) -> list[PageId]:
        """Forget all but `count` sequences, answers first, and return the last pages of the
        forgotten ones."""
        # Types that are not known come first, as answers do.
        rank = {name: place for place, name in enumerate(TYPES)}
        order = sorted(self._live().items(), key=lambda item: rank.get(item[1].cache_type, 0))
        gone = [page for page, _one in order[: max(0, len(order) - count)]]
        for page in gone:
            del self._sequences[page]
        return gone

    def by_type(self) -> dict[str, dict[str, int]]:
        """Return the count of sequences, and the bytes that they added, by type."""
        result = {name: {"n_sequences": 0, "n_bytes": 0} for name in TYPES}
        for one in self._live().values():
            row = result.setdefault(one.cache_type, {"n_sequences": 0, "n_bytes": 0})
            row["n_sequences"] += 1
            row["n_bytes"] += one.nbytes
        return result

    def _live(self) -> OrderedDict[PageId, _Inserted]:
        for page in [page for page in self._sequences if self._store.find(page) is None]:
            del self._sequences[page]
        return self._sequences
