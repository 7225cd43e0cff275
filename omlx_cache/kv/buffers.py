"""The few MLX operations that the working caches are made of, all lazy.

Buffers are (batch, kv heads, tokens, dim); a column is one token. A Python handle
(`mx.array` object) and the buffer behind it are different things here: a slice
assignment changes the handle in place, and copies the buffer only if another handle,
or work still in flight, refers to it. The mixins give the caches what upstream's lack.
"""

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models import cache as upstream

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


class Independent:
    """Mixin: `copy.copy` and `copy.deepcopy` both give an independent cache, at no bytes.

    The buffers stay shared until one of the two is written, and MLX copies what is
    written then. Upstream's shallow copy shares the Python handles instead, so that both
    caches see the bytes of whichever wrote last.
    """

    def __copy__(self) -> Any:
        twin = type(self).__new__(type(self))
        twin.__dict__.update({name: shared(value) for name, value in self.__dict__.items()})
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        twin = copy.copy(self)
        memo[id(self)] = twin
        return twin


class _Read:
    """Mixin: what upstream calls `state` before 0.32 is cut to the tokens already."""

    state: Any

    def keys_and_values(self) -> tuple[Array, Array]:
        """Return the tokens in use, as views."""
        keys, values, *_padding = self.state
        return keys, values


class _Inherited:
    """Mixin: upstream's own."""

    if TYPE_CHECKING:

        def keys_and_values(self) -> tuple[Array, Array]: ...


KeysAndValues: Any = _Inherited if hasattr(upstream.KVCache, "keys_and_values") else _Read
"""What an mlx-lm before 0.32 lacks."""
