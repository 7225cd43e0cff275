"""mlx-vlm with this cache: its generator's automatic prefix cache, and its server's.

`CachedBatchGenerator` imports mlx-vlm, so it is imported when it is first used.
"""

from typing import TYPE_CHECKING

from omlx_cache.integrations.mlx_vlm.install import install
from omlx_cache.integrations.mlx_vlm.manager import ApcManager

if TYPE_CHECKING:
    from omlx_cache.integrations.mlx_vlm.generator import CachedBatchGenerator

__all__ = ["ApcManager", "CachedBatchGenerator", "install"]


def __getattr__(name: str) -> object:
    if name != "CachedBatchGenerator":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from omlx_cache.integrations.mlx_vlm.generator import CachedBatchGenerator

    return CachedBatchGenerator
