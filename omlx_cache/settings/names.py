"""The names of all settings, for those that must not wait for pydantic to be imported."""

SETTING_NAMES = (
    "block_size",
    "hot_bytes",
    "hot_cache_only",
    "cold_dir",
    "cold_bytes",
    "min_free_bytes",
    "write_policy",
    "queue_bytes",
    "queue_full",
    "commit_wait_seconds",
    "restore_bytes",
    "restore_wait_seconds",
    "restore_wait_seconds_per_token",
    "share_wait_seconds",
    "durability",
    "codec",
    "cold_codec",
    "min_quantize_tokens",
    "key_hash",
    "snapshot_bytes",
    "snapshot_stride",
    "min_free_memory_bytes",
    "socket",
    "log_level",
)
"""In the order of the reference: the fields of `CacheSettings`."""
