"""mlx-vlm with this cache: its generator's automatic prefix cache, and its server's."""

from omlx_cache.integrations.mlx_vlm.install import install
from omlx_cache.integrations.mlx_vlm.manager import ApcManager

__all__ = ["ApcManager", "install"]
