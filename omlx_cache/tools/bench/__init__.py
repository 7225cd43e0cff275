"""Measurements that a user can repeat: `omlx-cache bench` and `omlx-cache bench-kv`."""
