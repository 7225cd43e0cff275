"""LayerView: what an mlx-lm model sees of one layer of the pool, for one or more sequences."""

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
from mlx_lm.models import cache as upstream

from .buffers import Array


class Pool(Protocol):
    """What a view asks of the manager that owns the memory."""

    def append_batch(self, seq_ids: Sequence[int], layer_idx: int, k: Array, v: Array) -> None: ...

    def get_batch(self, seq_ids: Sequence[int], layer_idx: int) -> tuple[Array, Array]: ...

    def get_seq_len(self, seq_id: int) -> int: ...

    def all_appended(self, seq_id: int, n: int) -> bool: ...

    def advance_seq_len(self, seq_id: int, n: int) -> None: ...

    def layer_buffers(self, layer_idx: int) -> tuple[Array, Array]: ...


class LayerView(upstream._BaseCache):  # type: ignore[misc]
    """A cache in mlx-lm's sense, with no memory of its own.

    One sequence: offsets, masks and results are KVCache's. Several: row i of the batch is
    sequence i, each at its own position; rows shorter than the longest are masked. The
    sequences advance when the last layer has appended, whatever the layers' order; to
    discard padding at a row's end, follow with `manager.truncate`.

    Trimming goes through `manager.truncate`: it concerns all layers at once.
    """

    def __init__(self, manager: Pool, seq_ids: tuple[int, ...], layer: int) -> None:
        if not seq_ids:
            raise ValueError("a view needs at least one sequence")
        if len(set(seq_ids)) != len(seq_ids):
            raise ValueError(f"a sequence can be in a batch only once, got {seq_ids}")
        self._manager = manager
        self._seq_ids = seq_ids
        self._layer = layer

    @property
    def offset(self) -> Any:
        """Committed tokens: an int for one sequence, else an array (B,)."""
        lengths = self._lengths()
        return lengths[0] if len(lengths) == 1 else mx.array(lengths)

    @property
    def state(self) -> tuple[Array, Array]:
        """This layer of the pool, so that `mx.eval` on it runs the pending writes."""
        return self._manager.layer_buffers(self._layer)

    @property
    def nbytes(self) -> int:
        """Bytes of this layer in these sequences' slots: reserved, whatever is used."""
        keys, values = self._manager.layer_buffers(self._layer)
        slots: int = keys.shape[0]
        total: int = keys.nbytes + values.nbytes
        return total // slots * len(self._seq_ids)

    def update_and_fetch(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Append (B, heads, n, dim); return all tokens (B, heads, longest, dim) as views; lazy."""
        manager, layer = self._manager, self._layer
        manager.append_batch(self._seq_ids, layer, keys, values)
        fetched = manager.get_batch(self._seq_ids, layer)
        self._advance(keys.shape[2])
        return fetched

    def keys_and_values(self) -> tuple[Array, Array]:
        return self._manager.get_batch(self._seq_ids, self._layer)

    def load_prefix(self, k: Array, v: Array) -> None:
        """Append one layer of a restored prefix, (B, heads, n, dim); lazy.

        As a forward pass does: committed when the last layer's has been loaded.
        """
        self.update_and_fetch(k, v)

    def make_mask(self, N: int, window_size: int | None = None, return_array: bool = False) -> Any:
        """Return the mask for the next `N` tokens: KVCache's for one sequence, else an array."""
        lengths = self._lengths()
        if len(lengths) == 1:
            return upstream.create_attention_mask(
                N, offset=lengths[0], return_array=return_array, window_size=window_size
            )
        query = np.array(lengths)[:, None] + np.arange(N)
        column = np.arange(max(lengths) + N)
        visible = column <= query[..., None]
        if window_size is not None:
            visible &= column > query[..., None] - window_size
        return mx.array(visible[:, None])

    def size(self) -> int:
        return max(self._lengths())

    def empty(self) -> bool:
        return self.size() == 0

    def is_trimmable(self) -> bool:
        return False

    def _lengths(self) -> list[int]:
        return [self._manager.get_seq_len(seq_id) for seq_id in self._seq_ids]

    def _advance(self, count: int) -> None:
        manager = self._manager
        for seq_id in self._seq_ids:
            if manager.all_appended(seq_id, count):
                manager.advance_seq_len(seq_id, count)
