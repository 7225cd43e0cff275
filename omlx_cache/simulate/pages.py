"""The pages of a simulation: sizes and places, and no bytes."""

from collections.abc import Sequence

from omlx_cache.simulate.requests import Workload
from omlx_cache_storage.keys import NAMESPACE_BYTES, BlockKey
from omlx_cache_storage.page import PAGED, Page, PageId, PageMeta, Tensors, TensorSpec

NAMESPACE = BlockKey(bytes(NAMESPACE_BYTES))


class SimulatedPages:
    """The pages of a workload, all of `nbytes`. Made when they are first asked for, and then kept.

    Mutable by its owner: `_made`.
    """

    def __init__(self, workload: Workload, nbytes: int) -> None:
        self.nbytes = nbytes
        self.ids = [PageId(key_of(number), PAGED) for number in range(workload.pages)]
        self._size = workload.block_size
        self._tensors = Tensors((TensorSpec("kv", "U8", (nbytes,)),))
        self._made: dict[int, Page] = {}

    def page(self, chain: Sequence[int], at: int) -> Page:
        """Return a chain's page of one place."""
        number = chain[at]
        made = self._made.get(number)
        if made is None:
            parent = self.ids[chain[at - 1]].key if at else NAMESPACE
            meta = PageMeta(
                NAMESPACE,
                self.ids[number].key,
                parent,
                PAGED,
                (at + 1) * self._size,
                self._size,
                False,
                "dense",
                self._tensors,
            )
            made = self._made[number] = Page(meta, None)
        return made


def key_of(number: int) -> BlockKey:
    """Return the key of a page's number; none is the namespace's."""
    return BlockKey((number + 1).to_bytes(8, "big") + bytes(NAMESPACE_BYTES - 8))
