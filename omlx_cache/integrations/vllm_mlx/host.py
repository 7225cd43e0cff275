"""The names that vllm-mlx must have."""

from omlx_cache.integrations.host_server import HostName, HostServer, names_of

HOST = HostServer(
    "vllm-mlx",
    "vllm-mlx",
    ">=0.6.0,<0.7",
    (
        HostName("vllm_mlx.cli", "main", "to run its command"),
        HostName("vllm_mlx.scheduler", "Scheduler", "to see each scheduler that is made"),
        *names_of(
            "vllm_mlx.scheduler",
            "SchedulerConfig",
            "enable_prefix_cache ssd_cache_dir cache_memory_mb kv_cache_quantization "
            "kv_cache_quantization_bits kv_cache_min_quantize_tokens",
            "to do what its flags say",
        ),
    ),
)
SCHEDULER = (
    *names_of(
        "vllm_mlx.scheduler",
        "Scheduler",
        "config model tokenizer requests prefix_cache memory_aware_cache block_aware_cache "
        "paged_cache_manager _ssd_tier close_ssd_tier SNAPSHOT_REFRESH_TOKENS",
        "to be in place of its own caches",
    ),
    *names_of(
        "vllm_mlx.scheduler",
        "Scheduler",
        "_create_batch_generator _close_batch_generator _current_sampler_params",
        "to store what a batch computes",
    ),
    *names_of(
        "vllm_mlx.scheduler",
        "Scheduler",
        "_bounded_kv_size _bound_cache_layers",
        "to bound caches as it does",
    ),
)
GENERATOR = names_of(
    "vllm_mlx.mllm_batch_generator",
    "MLLMBatchGenerator",
    "prefix_cache language_model processor max_kv_size",
    "to be in place of its own cache",
)
