"""The cache inside other people's schedulers; each module imports the package it is named for."""

from collections.abc import Mapping

SERVERS: Mapping[str, str] = {
    "mlx-openai-server": "openai_server",
    "mlx_lm.server": "mlx_lm",
    "mlx_vlm.server": "mlx_vlm",
    "vllm-mlx": "vllm_mlx",
}
"""The servers that `omlx-cache run` knows, and the package here whose `launch` module runs each."""
