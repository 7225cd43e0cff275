"""mlx-lm with this cache: its server's prompt cache, and its `generate` and `stream_generate`."""

from omlx_cache.integrations.mlx_lm.generation import generate, stream_generate
from omlx_cache.integrations.mlx_lm.models import LoadedModel
from omlx_cache.integrations.mlx_lm.prompt_cache import TieredPromptCache
from omlx_cache.integrations.mlx_lm.shared import cache_of
from omlx_cache.integrations.naming import model_name

__all__ = [
    "LoadedModel",
    "TieredPromptCache",
    "cache_of",
    "generate",
    "model_name",
    "stream_generate",
]
