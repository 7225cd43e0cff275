"""Measurements that a user can repeat: `omlx-cache bench`."""
