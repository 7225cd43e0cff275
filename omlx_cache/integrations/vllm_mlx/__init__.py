"""vllm-mlx with this cache: the prefix cache of its schedulers, for requests of text."""

from omlx_cache.integrations.vllm_mlx.launch import install
from omlx_cache.integrations.vllm_mlx.prefix_cache import TieredPrefixCache

__all__ = ["TieredPrefixCache", "install"]
