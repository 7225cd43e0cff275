"""mlx-vlm with this cache: its generator's automatic prefix cache, and its server's."""

from typing import TYPE_CHECKING

from omlx_cache.package import on_first_use

if TYPE_CHECKING:
    from omlx_cache.integrations.mlx_vlm.generator import ApcBatchGenerator
    from omlx_cache.integrations.mlx_vlm.launch import install
    from omlx_cache.integrations.mlx_vlm.manager import ApcManager

__all__ = ["ApcBatchGenerator", "ApcManager", "install"]

_MODULES = {"ApcBatchGenerator": ".generator", "ApcManager": ".manager", "install": ".launch"}
__getattr__ = on_first_use(__name__, _MODULES)
