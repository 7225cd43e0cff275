"""mlx-lm with this cache: its server's prompt cache, and its `generate` and `stream_generate`.

A name is imported when it is used: another version of mlx-lm may lack a name that one of them
needs.
"""

from typing import TYPE_CHECKING

from omlx_cache.package import on_first_use

if TYPE_CHECKING:
    from omlx_cache.integrations.lanes import model_name
    from omlx_cache.integrations.mlx_lm.generation import generate, stream_generate
    from omlx_cache.integrations.mlx_lm.models import LoadedModel, cache_of
    from omlx_cache.integrations.mlx_lm.prompt_cache import TieredPromptCache

__all__ = [
    "LoadedModel",
    "TieredPromptCache",
    "cache_of",
    "generate",
    "model_name",
    "stream_generate",
]

_MODULES = {
    "LoadedModel": ".models",
    "TieredPromptCache": ".prompt_cache",
    "cache_of": ".models",
    "generate": ".generation",
    "model_name": "..lanes",
    "stream_generate": ".generation",
}
__getattr__ = on_first_use(__name__, _MODULES)
