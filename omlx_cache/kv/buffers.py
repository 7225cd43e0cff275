"""The few MLX operations that the working caches are made of, all lazy.

Buffers are (batch, kv heads, tokens, dim); a column is one token. A slice assignment changes a
Python handle (`mx.array` object) in place, and copies the buffer behind it only if another handle,
or work still in flight, refers to it.
"""

import copy
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models import cache as upstream

Array = Any  # mx.array; MLX's surface stays untyped in this package
Pair = Any  # keys and values, tuple[Array, Array]


def regrow(buffer: Array | None, used: int, columns: int, like: Array) -> Array:
    """Return a new buffer of `columns` tokens: `buffer`'s first `used`, then zeros."""
    batch, heads, _, dim = like.shape
    grown = mx.zeros((batch, heads, columns, dim), like.dtype)
    if buffer is not None and used > 0:
        grown[..., :used, :] = buffer[..., :used, :]
    return grown


def owned(view: Array) -> Array:
    """Return a copy of `view` that pins no parent; lazy. When the parent's last handle is freed
    before the copy is evaluated, MLX may take over a parent that is at most 16 KiB longer. Keep
    that handle to be exact."""
    return mx.array(view)


def shared(tree: Any) -> Any:
    """Return `tree` with a fresh handle per array: same buffers, later writes not shared."""
    return tree_map(lambda leaf: copy.copy(leaf) if isinstance(leaf, mx.array) else leaf, tree)


def own_step(cache: Any) -> int | None:
    step: int | None = cache.__dict__.get("step")
    return step


def positive(name: str, value: int) -> int:
    """Return `value`; raises ValueError naming the option unless it is an int of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    return value


class _Read:
    """Mixin: what upstream calls `state` before 0.32 is cut to the tokens already."""

    state: Any

    def keys_and_values(self) -> Pair:
        keys, values, *_padding = self.state
        return keys, values


_KeysAndValues: Any = object if hasattr(upstream.KVCache, "keys_and_values") else _Read
"""The method that an mlx-lm before 0.32 lacks."""


class Independent(_KeysAndValues):  # type: ignore[misc]
    """Mixin: copies, and a cache made from another's state, are independent, at no bytes: MLX
    copies a shared buffer when one of the two is written.

    Upstream's shallow copy, and its state, share the Python handles instead, so that both caches
    see the bytes of the last writer.
    """

    def __copy__(self) -> Any:
        twin = type(self).__new__(type(self))
        twin.__dict__.update({name: shared(value) for name, value in self.__dict__.items()})
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        twin = copy.copy(self)
        memo[id(self)] = twin
        return twin

    @property
    def state(self) -> Any:
        """Upstream's: the buffers themselves, over-allocation included, and the scalars."""
        return super().state

    @state.setter
    def state(self, state: Any) -> None:
        super(Independent, type(self)).state.fset(self, shared(state))
