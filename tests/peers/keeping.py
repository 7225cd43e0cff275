"""A small store, and a model for caches whose keys and values are drawn."""

from pathlib import Path

import mlx.core as mx

from omlx_cache import BlockStore, CacheSettings


class Nothing:
    """A model that computes nothing."""

    def parameters(self) -> dict[str, mx.array]:
        return {}


def open_store(directory: str, block_size: int) -> BlockStore:
    return BlockStore(
        CacheSettings(
            cold_dir=Path(directory),
            hot_bytes="64MiB",
            cold_bytes="64MiB",
            min_free_bytes=0,
            socket="off",
            block_size=block_size,
        )
    )
