"""The sequences that were inserted, by type: what mlx-lm's server logs about its cache."""

from collections import OrderedDict
from dataclasses import dataclass

from omlx_cache.store import BlockStore
from omlx_cache_storage.keys import KeyChain
from omlx_cache_storage.page import PageId

TYPES = ("assistant", "user", "system")
REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class _Entry:
    namespace: bytes
    position: int
    nbytes: int
    cache_type: str


class SequenceLedger:
    """Counts sequences whose last page is still in a tier. The newest 256 are remembered.

    Owned by the model's thread.
    """

    def __init__(self, store: BlockStore) -> None:
        self._store = store
        self._entries: OrderedDict[PageId, _Entry] = OrderedDict()

    def add(
        self,
        chain: KeyChain,
        end: PageId,
        position: int,
        nbytes: int,
        cache_type: str,
        *,
        absorbs: bool,
    ) -> None:
        """Note a sequence; with `absorbs` its own prefixes are no sequences any more."""
        if absorbs:
            for page, entry in list(self._entries.items()):
                if (
                    entry.namespace == chain.namespace
                    and entry.position <= position
                    and chain.key(entry.position) == page.key
                ):
                    del self._entries[page]
                    nbytes += entry.nbytes
        self._entries[end] = _Entry(chain.namespace, position, nbytes, cache_type)
        self._entries.move_to_end(end)
        while len(self._entries) > REMEMBERED:
            self._entries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._live())

    def keep_newest(self, count: int) -> list[PageId]:
        """Forget all but `count` sequences, answers first, and return the last pages of those."""
        order = sorted(self._live().items(), key=lambda item: _rank(item[1]))
        gone = [page for page, _entry in order[: max(0, len(order) - count)]]
        for page in gone:
            del self._entries[page]
        return gone

    def by_type(self) -> dict[str, dict[str, int]]:
        """Return the count of sequences, and the bytes that they added, by type."""
        result = {name: {"n_sequences": 0, "n_bytes": 0} for name in TYPES}
        for entry in self._live().values():
            row = result.setdefault(entry.cache_type, {"n_sequences": 0, "n_bytes": 0})
            row["n_sequences"] += 1
            row["n_bytes"] += entry.nbytes
        return result

    def _live(self) -> OrderedDict[PageId, _Entry]:
        for page in [page for page in self._entries if self._store.find(page) is None]:
            del self._entries[page]
        return self._entries


def _rank(entry: _Entry) -> int:
    """Answers are given up first and system prompts last, as in mlx-lm's own cache."""
    return TYPES.index(entry.cache_type) if entry.cache_type in TYPES else 0
