"""The few MLX operations that the working caches are made of, all lazy.

Buffers are (batch, kv heads, tokens, dim); a column is one token. A Python handle
(`mx.array` object) and the buffer behind it are different things here: a slice
assignment changes the handle in place, and copies the buffer only if another handle,
or work still in flight, refers to it.
"""

import copy
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

Array = Any  # mx.array; MLX's surface stays untyped in this package


def room(like: Array, columns: int) -> Array:
    """Return a zeroed buffer of `columns` tokens with `like`'s other dimensions and dtype."""
    batch, heads, _, dim = like.shape
    return mx.zeros((batch, heads, columns, dim), like.dtype)


def regrow(buffer: Array | None, used: int, columns: int, like: Array) -> Array:
    """Return a new buffer of `columns` tokens that starts with `buffer`'s first `used`."""
    grown = room(like, columns)
    if buffer is not None and used > 0:
        grown[..., :used, :] = buffer[..., :used, :]
    return grown


def owned(view: Array) -> Array:
    """Return a copy of `view` that pins no parent; lazy.

    When the parent's last handle goes before the copy is evaluated, MLX may take over
    a parent that is at most 16 KiB longer instead of copying; hold it to be exact.
    """
    return mx.array(view)


def shared(tree: Any) -> Any:
    """Return `tree` with a fresh handle per array: same buffers, later writes not shared."""
    return tree_map(lambda leaf: copy.copy(leaf) if isinstance(leaf, mx.array) else leaf, tree)


def join(parts: Sequence[Array]) -> Array:
    """Return the parts one after the other along the token axis; a single part as it is."""
    return parts[0] if len(parts) == 1 else mx.concatenate(list(parts), axis=2)


def drop_front(parts: Sequence[Array], count: int) -> list[Array]:
    """Return the parts without their first `count` columns; empty parts are left out."""
    kept = []
    for part in parts:
        length = part.shape[2]
        cut = min(count, length)
        count -= cut
        if cut < length:
            kept.append(part[..., cut:, :])
    return kept
