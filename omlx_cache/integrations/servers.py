"""The servers that `omlx-cache run` knows, by what people type; imports nothing that is slow."""

from collections.abc import Mapping

SERVERS: Mapping[str, str] = {
    "mlx-openai-server": "openai_server",
    "mlx_lm.server": "mlx_lm",
    "mlx_vlm.server": "mlx_vlm",
    "vllm-mlx": "vllm_mlx",
}
"""The package of `omlx_cache.integrations` whose `launch` module runs each."""
