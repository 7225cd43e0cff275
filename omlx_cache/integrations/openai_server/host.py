"""The names that mlx-openai-server must have. Imports no MLX."""

from omlx_cache.integrations.host_server import HostName, HostServer, names_of

HOST = HostServer(
    "mlx-openai-server",
    "mlx-openai-server",
    ">=1.8.1,<1.9",
    (
        HostName("app.cli", "cli", "to run its command"),
        HostName("app.server", "create_handler_from_config", "to see each handler that is made"),
        HostName("app.core.handler_process", "_handler_worker", "to be in spawned processes too"),
    ),
)

_WHY = "to be in place of its own cache"
SCHEDULER = names_of(
    "app.core",
    "BatchScheduler",
    "_prompt_cache _model _max_kv_size _prefill_batch_size _batch_generator",
    _WHY,
)
HANDLER = names_of(
    "app.handler.mlx_lm",
    "MLXLMHandler",
    "prompt_cache model model_path kv_bits kv_group_size quantized_kv_start _batch_scheduler "
    "_batch_max_kv_size _batch_prefill_size _is_request_batchable",
    _WHY,
)
