"""A pytest plugin: every scheduler of vllm-mlx that a test makes has this cache in it."""

import tempfile

from omlx_cache import BlockStore, CacheSettings
from omlx_cache.integrations.vllm_mlx import launch

_stores: list[BlockStore] = []


def _open() -> BlockStore:
    if not _stores:
        folder = tempfile.mkdtemp()
        _stores.append(BlockStore(CacheSettings(cold_dir=folder, socket="off", min_free_bytes=0)))
    return _stores[0]


launch.place(_open)
