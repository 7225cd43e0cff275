"""The names that mlx-vlm must have."""

from omlx_cache.integrations.host_server import HostName, HostServer, names_of

_APC, _AR, _CACHES = "mlx_vlm.apc", "mlx_vlm.generate.ar", "mlx_vlm.models.cache"
HOST = HostServer(
    "mlx_vlm.server",
    "mlx-vlm",
    "==0.7.10",
    (
        HostName("mlx_vlm.server", "main", "to run its command"),
        HostName("mlx_vlm.server.runtime", "runtime", "to find what is loaded"),
        HostName("mlx_vlm.server.generation", "BatchGenerator", "to make its generators"),
        HostName(_APC, "from_env", "to make its cache"),
        HostName(_APC, "media_safe_prefix_min", "to keep nothing that ends before an image"),
        HostName(_APC, "make_warm_batch_exact_cache_multi", "to merge restored rows"),
        HostName(_APC, "_hash_payload", "to tell images and sound apart"),
        HostName(_APC, "_stable_int_hash", "to tell images and sound apart"),
        HostName(_APC, "APCManager", "to be in its place"),
        *names_of(
            _APC,
            "APCCoordinator",
            "lookup checkpoint_lengths merge_rows materialize_single "
            "store_checkpoint commit is_checkpoint",
            "to be asked for prompts",
        ),
        *names_of(
            _AR,
            "BatchGenerator",
            "next remove _apc_pick_for _apc_extra_hash _build_mixed_prompt_batch",
            "to follow its requests",
        ),
        *names_of(_AR, "GenerationBatch", "filter next", "to keep answers"),
        *names_of(_AR, "PromptProcessingBatch", "_row_real_tokens_processed", "to keep prompts"),
        *(
            HostName(_CACHES, name, "to know its caches")
            for name in ("make_prompt_cache", "KVCache", "BatchKVCache", "CacheList")
        ),
    ),
)
GENERATOR = names_of(
    "mlx_vlm.generate.ar",
    "BatchGenerator",
    "model apc apc_manager apc_mode draft_model prefill_batch_size kv_bits kv_quant_scheme "
    "kv_group_size quantized_kv_start _stream _prompt_batch _generation_batch",
    "to follow its requests",
)
