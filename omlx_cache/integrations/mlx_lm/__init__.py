"""mlx-lm with this cache: its server's prompt cache, and its `generate` and `stream_generate`."""

from omlx_cache.integrations.mlx_lm.generation import generate, stream_generate
from omlx_cache.integrations.mlx_lm.models import LoadedModel, cache_of, model_name
from omlx_cache.integrations.mlx_lm.prompt_cache import TieredPromptCache

__all__ = [
    "LoadedModel",
    "TieredPromptCache",
    "cache_of",
    "generate",
    "model_name",
    "stream_generate",
]
