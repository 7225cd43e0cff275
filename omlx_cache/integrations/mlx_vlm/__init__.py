"""mlx-vlm with this cache: its generator's automatic prefix cache, and its server's.

Modules that import mlx-vlm are imported at their first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omlx_cache.integrations.mlx_vlm.generator import ApcBatchGenerator
    from omlx_cache.integrations.mlx_vlm.launch import install
    from omlx_cache.integrations.mlx_vlm.manager import ApcManager

__all__ = ["ApcBatchGenerator", "ApcManager", "install"]

_MODULES = {"ApcBatchGenerator": "generator", "ApcManager": "manager", "install": "launch"}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
