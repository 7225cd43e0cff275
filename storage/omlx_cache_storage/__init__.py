"""Bytes and tiers: pages, keys, the hot and cold tiers, and the writer queue.

Nothing here imports MLX: a page's payload is any object with a contiguous buffer.
"""
