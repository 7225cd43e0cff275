"""A chain of KVCache pages that no model computed: their values follow from the tokens' places."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache

from kit.drive import settings
from kit.storage import store_page
from omlx_cache import BlockStore
from omlx_cache.restore.pending import Restored, restore
from omlx_cache.restore.reading import Reading, Walk
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.keys import KeyChain, as_tokens, namespace_digest
from omlx_cache_storage.page import Page, PageId, PageMeta, TensorSpec

LAYERS, DIM = 2, 4


class PlainChain:
    """`blocks` blocks of `size` tokens for a cache of two KVCache layers."""

    def __init__(self, blocks: int, size: int = 16) -> None:
        self.blocks, self.size = blocks, size
        self.namespace = namespace_digest({"model": "plain"})
        tokens = as_tokens(range(self.blocks * self.size + 1))
        self.chain = KeyChain(self.namespace, tokens, self.size)

    def id(self, number: int) -> PageId:
        return PageId(self.chain.key(number * self.size), "paged")

    def page(
        self, number: int, *, heads: int = 2, batch: int = 1, leaf: int = 0, codec: str = "dense"
    ) -> Page:
        """Return page `number`, from 1; other `heads` or `leaf` make it a misfit."""
        end = number * self.size
        shape = (batch, heads, self.size, DIM)
        tensors = tuple(
            TensorSpec(f"{leaf + layer}.{side}", "F32", shape)
            for layer in range(LAYERS)
            for side in ("keys", "values")
        )
        chain = self.chain
        meta = PageMeta(
            self.namespace, chain.key(end), chain.parent(end), "paged",
            end, self.size, False, codec, tensors,
        )  # fmt: skip
        values = [expected(spec.name, shape, end - self.size).tobytes() for spec in tensors]
        return Page(meta, mx.array(np.frombuffer(b"".join(values), dtype=np.uint8)))

    def store(self, store: BlockStore, pages: Iterable[Page] = ()) -> None:
        """Put the chain into a store, with some pages in the place of the right ones."""
        others = {page.meta.id: page for page in pages}
        for number in range(1, self.blocks + 1):
            page = self.page(number)
            page = others.get(page.meta.id, page)
            store_page(store, page)
        assert store.flush(60)

    def open(self, directory: Path, disk: FileSystem | None = None, **fields: Any) -> BlockStore:
        return BlockStore(settings(directory, block_size=self.size, **fields), filesystem=disk)

    def restore(self, store: BlockStore) -> tuple[list[KVCache], Restored]:
        caches = [KVCache() for _ in range(LAYERS)]
        length = self.blocks * self.size
        walk = Walk(store, caches, self.chain, length, length + 8, frozenset())
        return caches, restore(Reading(walk))


def expected(name: str, shape: tuple[int, ...], start: int) -> Any:
    """Return the values of tokens from `start`: no two tokens, heads or tensors have the same."""
    seed = sum(name.encode())
    batch, heads, tokens, dim = shape
    place = np.arange(start, start + tokens, dtype=np.float32)[None, None, :, None]
    head = np.arange(heads, dtype=np.float32)[None, :, None, None] / 8
    row = np.arange(batch, dtype=np.float32)[:, None, None, None] / 4
    return (place + head + row + seed + np.zeros((1, 1, 1, dim), np.float32)).astype(np.float32)


def is_right(caches: list[KVCache], position: int) -> bool:
    """True when caches hold the first `position` tokens of a chain, and nothing else."""
    for layer, cache in enumerate(caches):
        if cache.offset != position:
            return False
        for side, array in (("keys", cache.keys), ("values", cache.values)):
            if position == 0:
                return array is None
            shape = (1, 2, position, DIM)
            right = expected(f"{layer}.{side}", shape, 0)
            if not np.array_equal(np.array(array)[:, :, :position], right):
                return False
    return True


def renamed(page: Page, old: str, new: str) -> Page:
    """Return a page with other tensor names."""
    tensors = tuple(
        TensorSpec(t.name.replace(old, new), t.dtype, t.shape) for t in page.meta.tensors
    )
    return Page(replace(page.meta, tensors=tensors), page.payload)
