"""KVCacheManager: one pre-allocated pool of KV memory, handed out in slots to sequences.

Per layer, keys and values are one buffer (slots, kv heads, max_seq_len, head_dim). A sequence owns
the lowest slot that was free: those that run together tend to lie side by side, and a batch of them
is a slice of the pool. A model sees a layer of it as a LayerView.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models import cache as upstream

from .buffers import Array, positive

# MLX's CUDA indexing kernels fail to load for arrays of more elements than this.
MAX_ELEMENTS = 2**31 - 1


class KVError(Exception):
    """Base of all errors of `omlx_cache.kv`."""


class NoFreeSlotError(KVError):
    """Every slot of the pool is taken by a sequence that has not been released."""


class SequenceTooLongError(KVError, ValueError):
    """A sequence was asked to hold more tokens than it was allocated, or a slot can hold."""


class UnknownSequenceError(KVError, LookupError):
    """A sequence id that was never given out, or that has been released."""


class AppendError(KVError, ValueError):
    """Keys or values of a wrong shape or dtype, or for a layer that does not exist."""


class AdvanceError(KVError, ValueError):
    """An advance past what every layer has appended."""


class SequenceState(Enum):
    """EMPTY -> ACTIVE -> FULL -> RELEASED; release is possible from each."""

    EMPTY = "empty"
    ACTIVE = "active"
    FULL = "full"
    RELEASED = "released"


@dataclass(slots=True)
class Sequence:
    """Mutable: `length`, committed tokens; `pending`, tokens appended beyond it per layer;
    `leftover`, whether `pending` is the uncommitted part of a round."""

    seq_id: int
    slot: int
    max_len: int
    length: int = 0
    pending: list[int] = field(default_factory=list)
    leftover: bool = False

    @property
    def state(self) -> SequenceState:
        if self.length == 0:
            return SequenceState.EMPTY
        return SequenceState.FULL if self.length == self.max_len else SequenceState.ACTIVE

    def end_of(self, count: int) -> int:
        end = self.length + count
        if end > self.max_len:
            raise SequenceTooLongError(
                f"sequence {self.seq_id} holds {self.length} tokens and was allocated "
                f"{self.max_len}: {count} more do not fit"
            )
        return end

    def note_append(self, layer: int, count: int) -> None:
        """Record an append; it ends a round that was partly committed, in all layers."""
        if self.leftover:
            self.pending = [0] * len(self.pending)
            self.leftover = False
        self.pending[layer] = count


class KVCacheManager:
    """Holds all KV memory from construction on; appending writes in place. Not thread-safe: use it
    from the thread that runs the model.

    Positions follow from the committed length alone: `append_kv` writes behind it, for the layers
    in any order, and `advance_seq_len` commits what all layers have appended.

    A view from `get_cache` that is still held, or not yet evaluated work on it, makes MLX copy that
    layer's buffer at the next write; the result is right either way.
    """

    def __init__(
        self,
        max_batch_size: int,
        num_layers: int,
        max_seq_len: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: Array = mx.float16,
    ) -> None:
        self.max_batch_size = positive("max_batch_size", max_batch_size)
        self.num_layers = positive("num_layers", num_layers)
        self.max_seq_len = positive("max_seq_len", max_seq_len)
        self.num_kv_heads = positive("num_kv_heads", num_kv_heads)
        self.head_dim = positive("head_dim", head_dim)
        self.dtype = dtype
        shape = (max_batch_size, num_kv_heads, max_seq_len, head_dim)
        elements = max_batch_size * num_kv_heads * max_seq_len * head_dim
        if elements > MAX_ELEMENTS:
            raise ValueError(
                f"a layer's buffer of {elements} elements is above the limit of {MAX_ELEMENTS}: "
                "lower max_batch_size or max_seq_len"
            )
        self._keys = [mx.zeros(shape, dtype) for _ in range(num_layers)]
        self._values = [mx.zeros(shape, dtype) for _ in range(num_layers)]
        mx.eval(self._keys, self._values)
        self._free_slots = set(range(max_batch_size))
        self._sequences: dict[int, Sequence] = {}
        self._next_id = 0

    @property
    def memory_bytes(self) -> int:
        """Bytes of the pool: constant from construction to the end."""
        return sum(int(buffer.nbytes) for buffer in (*self._keys, *self._values))

    @property
    def free_slots(self) -> int:
        return len(self._free_slots)

    @property
    def active_sequences(self) -> tuple[int, ...]:
        return tuple(self._sequences)

    def allocate_sequence(self, max_len: int) -> int:
        """Return the id, never reused, of a new, empty sequence of at most `max_len` tokens. Raises
        SequenceTooLongError above `max_seq_len`, and NoFreeSlotError when all slots are taken."""
        if positive("max_len", max_len) > self.max_seq_len:
            raise SequenceTooLongError(
                f"max_len {max_len} is above this pool's max_seq_len of {self.max_seq_len}"
            )
        if not self._free_slots:
            raise NoFreeSlotError(
                f"all {self.max_batch_size} slots are taken (max_batch_size): release a sequence"
            )
        slot = min(self._free_slots)
        self._free_slots.remove(slot)
        seq_id, self._next_id = self._next_id, self._next_id + 1
        self._sequences[seq_id] = Sequence(seq_id, slot, max_len, pending=[0] * self.num_layers)
        return seq_id

    def release_sequence(self, seq_id: int) -> None:
        sequence = self._sequence(seq_id)
        del self._sequences[seq_id]
        self._free_slots.add(sequence.slot)

    def append_kv(self, seq_id: int, layer_idx: int, k: Array, v: Array) -> None:
        """Write (1, heads, n, dim) or (heads, n, dim) behind the committed tokens; lazy. Does not
        advance: a second append to the same layer overwrites the first."""
        self.append_batch([seq_id], layer_idx, k, v)

    def append_batch(self, seq_ids: Many[int], layer_idx: int, k: Array, v: Array) -> None:
        """Write row i of (B, heads, n, dim) behind the tokens of sequence `seq_ids[i]`; lazy."""
        sequences = [self._sequence(seq_id) for seq_id in seq_ids]
        self._check_layer(layer_idx)
        k, v = (self._checked(n, side, len(sequences)) for n, side in (("k", k), ("v", v)))
        if k.shape[2] != v.shape[2]:
            raise AppendError(f"k has {k.shape[2]} tokens and v {v.shape[2]}")
        self._write(sequences, layer_idx, k, v)

    def advance_seq_len(self, seq_id: int, n: int) -> None:
        """Commit `n` tokens; raises AdvanceError unless every layer has appended them."""
        sequence = self._sequence(seq_id)
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise AdvanceError(f"cannot advance by {n!r} tokens: give an integer >= 0")
        for layer, appended in enumerate(sequence.pending):
            if n > appended:
                raise AdvanceError(
                    f"sequence {seq_id}: cannot advance by {n} tokens, layer {layer} "
                    f"has appended {appended} since the last advance"
                )
        sequence.length += n
        sequence.pending = [appended - n for appended in sequence.pending]
        sequence.leftover = True

    def truncate(self, seq_id: int, length: int) -> None:
        """Forget the tokens from `length` on, appended and not advanced ones included."""
        sequence = self._sequence(seq_id)
        if isinstance(length, bool) or not isinstance(length, int):
            raise AdvanceError(f"cannot truncate to {length!r}: give an integer")
        if not 0 <= length <= sequence.length:
            raise AdvanceError(
                f"sequence {seq_id}: cannot truncate to {length} tokens, it holds {sequence.length}"
            )
        sequence.length = length
        sequence.pending = [0] * len(sequence.pending)

    def get_cache(
        self, seq_id: int, layer_idx: int, *, appended: bool = False
    ) -> tuple[Array, Array]:
        """Return keys and values (1, heads, n, dim) of the committed tokens, as views; lazy.

        appended: with the tokens that this layer has appended and not advanced. Valid until the
        next append; copy what you keep, and drop the view before it.
        """
        sequence = self._sequence(seq_id)
        self._check_layer(layer_idx)
        end = sequence.length + (sequence.pending[layer_idx] if appended else 0)
        return self._columns(layer_idx, [sequence.slot], end)

    def get_batch(self, seq_ids: Many[int], layer_idx: int) -> tuple[Array, Array]:
        """Return (B, heads, n, dim), n the longest row's tokens, appended ones included; lazy. A
        view when the sequences' slots lie side by side in order, else a copy. Columns behind a
        shorter row's end are unspecified: mask them."""
        sequences = [self._sequence(seq_id) for seq_id in seq_ids]
        self._check_layer(layer_idx)
        end = max(s.length + s.pending[layer_idx] for s in sequences)
        return self._columns(layer_idx, [s.slot for s in sequences], end)

    def get_seq_len(self, seq_id: int) -> int:
        return self._sequence(seq_id).length

    def all_appended(self, seq_id: int, n: int) -> bool:
        return all(appended == n for appended in self._sequence(seq_id).pending)

    def get_state(self, seq_id: int) -> SequenceState:
        released = self._was_released(seq_id)
        return SequenceState.RELEASED if released else self._sequence(seq_id).state

    def views(self, *seq_ids: int) -> list["LayerView"]:
        """Return one view per layer, for `model(tokens, cache=...)` over these sequences."""
        for seq_id in seq_ids:
            self._sequence(seq_id)
        return [LayerView(self, seq_ids, layer) for layer in range(self.num_layers)]

    def load_prefix(self, seq_id: int, layers: Many[tuple[Array, Array]]) -> None:
        """Put a restored prefix, per layer (k, v) of (1, heads, n, dim), into the slot of an empty
        sequence; lazy. Commits the n tokens, or raises and leaves it empty."""
        sequence = self._sequence(seq_id)
        if sequence.length:
            raise AppendError(f"sequence {seq_id} already holds {sequence.length} tokens")
        if len(layers) != self.num_layers:
            raise AppendError(f"prefix has {len(layers)} layers, the pool {self.num_layers}")
        checked = [(self._checked("k", k), self._checked("v", v)) for k, v in layers]
        counts = {side.shape[2] for pair in checked for side in pair}
        if len(counts) != 1:
            raise AppendError(f"the prefix's layers differ in length: {sorted(counts)} tokens")
        for layer_idx, (k, v) in enumerate(checked):
            self._write([sequence], layer_idx, k, v)
        self.advance_seq_len(seq_id, counts.pop())

    def layer_buffers(self, layer_idx: int) -> tuple[Array, Array]:
        return self._keys[layer_idx], self._values[layer_idx]

    def _sequence(self, seq_id: int) -> Sequence:
        try:
            return self._sequences[seq_id]
        except (KeyError, TypeError):
            what = "has been released" if self._was_released(seq_id) else "was never allocated"
            raise UnknownSequenceError(f"sequence {seq_id!r} {what}") from None

    def _was_released(self, seq_id: Any) -> bool:
        known = isinstance(seq_id, int) and 0 <= seq_id < self._next_id
        return known and seq_id not in self._sequences

    def _check_layer(self, layer_idx: int) -> None:
        if not 0 <= layer_idx < self.num_layers:
            raise AppendError(f"layer {layer_idx} is not one of the {self.num_layers} layers")

    def _checked(self, name: str, side: Array, rows: int = 1) -> Array:
        if side.ndim == 3 and rows == 1:
            side = side[None]
        expected = (rows, self.num_kv_heads, self.head_dim)
        if side.ndim != 4 or (*side.shape[:2], side.shape[3]) != expected:
            raise AppendError(
                f"{name} has shape {tuple(side.shape)}, expected ({rows}, {self.num_kv_heads} "
                f"heads, n tokens, {self.head_dim})"
            )
        if side.dtype != self.dtype:
            raise AppendError(f"{name} is {side.dtype}, the pool is {self.dtype}")
        return side

    def _write(self, sequences: Many[Sequence], layer: int, k: Array, v: Array) -> None:
        count = k.shape[2]
        ends = [sequence.end_of(count) for sequence in sequences]
        for row, (sequence, end) in enumerate(zip(sequences, ends, strict=True)):
            where = (slice(sequence.slot, sequence.slot + 1), slice(None), slice(end - count, end))
            self._keys[layer][where] = k[row : row + 1]
            self._values[layer][where] = v[row : row + 1]
            sequence.note_append(layer, count)

    def _columns(self, layer: int, slots: Many[int], end: int) -> tuple[Array, Array]:
        keys, values = self._keys[layer], self._values[layer]
        first, last = slots[0], slots[-1]
        if list(slots) == list(range(first, last + 1)):
            return keys[first : last + 1, :, :end], values[first : last + 1, :, :end]
        rows = mx.array(list(slots))
        return mx.take(keys[:, :, :end], rows, axis=0), mx.take(values[:, :, :end], rows, axis=0)


class LayerView(upstream._BaseCache):  # type: ignore[misc]
    """A cache in mlx-lm's sense, with no memory of its own.

    One sequence: offsets, masks and results are KVCache's. Several: row i of the batch is sequence
    i at its own position; rows shorter than the longest are masked. The sequences advance when the
    last layer has appended. `manager.truncate` trims all layers at once.
    """

    def __init__(self, manager: "KVCacheManager", seq_ids: tuple[int, ...], layer: int) -> None:
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
        keys, values = self._manager.layer_buffers(self._layer)
        return int(keys.nbytes + values.nbytes) // int(keys.shape[0]) * len(self._seq_ids)

    def update_and_fetch(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Append (B, heads, n, dim); return all tokens (B, heads, longest, dim) as views; lazy."""
        manager, count = self._manager, keys.shape[2]
        manager.append_batch(self._seq_ids, self._layer, keys, values)
        fetched = self.keys_and_values()
        for seq_id in self._seq_ids:
            if manager.all_appended(seq_id, count):
                manager.advance_seq_len(seq_id, count)
        return fetched

    def keys_and_values(self) -> tuple[Array, Array]:
        return self._manager.get_batch(self._seq_ids, self._layer)

    def load_prefix(self, k: Array, v: Array) -> None:
        """Append one layer of a restored prefix, (B, heads, n, dim); lazy. Committed when the last
        layer's has been loaded."""
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
