"""mlx-lm with this cache: its server's prompt cache, and its `generate` and `stream_generate`.

A name is imported when it is used: another version of mlx-lm may lack a name that one of them
needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omlx_cache.integrations.mlx_lm.generation import generate, stream_generate
    from omlx_cache.integrations.mlx_lm.models import LoadedModel, cache_of
    from omlx_cache.integrations.mlx_lm.prompt_cache import TieredPromptCache
    from omlx_cache.integrations.naming import model_name

__all__ = [
    "LoadedModel",
    "TieredPromptCache",
    "cache_of",
    "generate",
    "model_name",
    "stream_generate",
]

_MODULES = {
    "LoadedModel": "mlx_lm.models",
    "TieredPromptCache": "mlx_lm.prompt_cache",
    "cache_of": "mlx_lm.models",
    "generate": "mlx_lm.generation",
    "model_name": "naming",
    "stream_generate": "mlx_lm.generation",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"omlx_cache.integrations.{_MODULES[name]}"), name)
