"""The one narrow place that touches MLX's loosely typed surface: dtypes, buffers, devices.

A host view is a NumPy array over an evaluated array's own memory. While it lives, MLX sees the
buffer as shared, so views are taken, used and dropped inside one function.

MLX zeroes new memory, which costs as much as the copy that follows. Its safetensors loader need
not, but with a file object a stream waits for the interpreter's lock, and `mx.clear_cache` holds
that lock while it waits for all streams: a process whose model is fed meanwhile stands still for
ever. So a small "blank" array of bytes is copied from NumPy's memory, which has anything in it: MLX
does that on the spot. Large ones are zeroed by several streams: one core writes new memory at a
fraction of what the machine can. The thread that asks allocates it, since the system's allocator
keeps other threads' memory for those threads.
"""

import os
import platform
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache, partial
from itertools import cycle
from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from omlx_cache_storage.calls import is_whole
from omlx_cache_storage.page import Tensors, TensorSpec

Array: TypeAlias = mx.array
HostView: TypeAlias = npt.NDArray[Any]

TOKEN_AXIS = 2
"""The token axis of every growing cache array of mlx-lm: (batch, heads, tokens, head_dim)."""

NAMES: dict[Any, str] = {
    mx.bool_: "BOOL",
    mx.uint8: "U8",
    mx.int8: "I8",
    mx.uint16: "U16",
    mx.int16: "I16",
    mx.float16: "F16",
    mx.bfloat16: "BF16",
    mx.uint32: "U32",
    mx.int32: "I32",
    mx.float32: "F32",
    mx.uint64: "U64",
    mx.int64: "I64",
    mx.complex64: "C64",
}
"""The safetensors names of MLX's dtypes."""
DTYPES: dict[str, Any] = {name: dtype for dtype, name in NAMES.items()}
CARRIERS: dict[str, Any] = {
    "BOOL": np.uint8, "U8": np.uint8, "I8": np.uint8,
    "U16": np.uint16, "I16": np.uint16, "F16": np.uint16, "BF16": np.uint16,
    "U32": np.uint32, "I32": np.uint32, "F32": np.uint32,
    "U64": np.uint64, "I64": np.uint64, "C64": np.uint64,
}  # fmt: skip
"""The unsigned NumPy dtypes that carry a safetensors dtype bit for bit."""

SMALL_BYTES = 256 * 1024
SHARED_BYTES = 8 << 20
"""Bytes that several streams zero: waking them takes a fraction of a millisecond, in which one
zeroes fewer."""
STREAMS = min(4, os.cpu_count() or 1)

_dispatching = threading.Lock()
"""Held while tasks are given to the shared streams, which MLX leaves to their user to guard."""


def on_host() -> bool:
    """True when MLX computes on the CPU, where host copies beat MLX's own."""
    return bool(mx.default_device() == mx.cpu)


def architecture() -> str:
    """Return what tells devices apart whose results differ in the last bits."""
    if on_host():
        return f"cpu {platform.machine()}"
    info: dict[str, Any] = dict(mx.device_info())
    return f"gpu {info.get('architecture') or info.get('device_name', '')}"


@lru_cache(typed=True)
def check_packing(bits: int, group_size: int) -> tuple[int, int]:
    """Return bits and a group size as MLX takes them; raises ValueError for others."""
    for name, value in (("kv_bits", bits), ("kv_group_size", group_size)):
        # MLX divides by the group size before it looks at it: a zero would end the process.
        if not is_whole(value) or value < 1:
            raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    bits, group_size = int(bits), int(group_size)
    try:
        mx.quantize(mx.zeros((1, 128)), group_size=group_size, bits=bits)
    except (ValueError, TypeError, OverflowError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"kv_bits={bits}, kv_group_size={group_size}: {reason}") from None
    return bits, group_size


def widest(nbytes: int, offset: int) -> tuple[Any, int]:
    """Return the widest unsigned dtype in which `nbytes` at `offset` are whole items, and how many:
    a GPU moves fewer wide ones."""
    for dtype in (mx.uint64, mx.uint32, mx.uint16):
        if nbytes % dtype.size == 0 and offset % dtype.size == 0:
            return dtype, nbytes // dtype.size
    return mx.uint8, nbytes


def has_memory_of_its_own() -> bool:
    """True when MLX computes on a device with memory of its own, from which a host view moves an
    array."""
    return not on_host() and bool(mx.cuda.is_available())


def evaluate(arrays: Sequence[Any]) -> None:
    """Evaluate arrays, or trees of them, now; on the calling thread's stream."""
    mx.eval(list(arrays))


def feed(model: Any, tokens: Sequence[int], prompt_cache: Sequence[Any]) -> None:
    """Have a model read tokens into its prompt cache, and evaluate that and no logits."""
    model(mx.array([list(tokens)]), cache=prompt_cache)
    evaluate([cache.state for cache in prompt_cache])


def host_views(arrays: Iterable[Array]) -> list[HostView]:
    """Return the memory of evaluated arrays as unsigned items of their width, in their shape and
    strides. One call of MLX for all costs as much as for one. Writing through a view changes the
    array. Drop it before MLX updates the array in place."""
    carried = [array.view(DTYPES[f"U{array.itemsize * 8}"]) for array in arrays]
    mx.eval(carried)
    return list(map(partial(np.array, copy=False), carried))


def owned_zeros(specs: Mapping[str, TensorSpec]) -> dict[str, Array]:
    """Return evaluated zeros that own their memory, written by several cores; from any thread."""
    arrays: dict[str, Array] = {}
    shared = on_host() and Tensors(specs.values()).nbytes >= SHARED_BYTES
    with _dispatching:
        streams = cycle(_streams() if shared else [None])
        for name, spec in specs.items():
            arrays[name] = mx.zeros(spec.shape, DTYPES[spec.dtype], stream=next(streams))
        mx.async_eval(list(arrays.values()))
    mx.eval(list(arrays.values()))
    return arrays


@cache
def _streams() -> list[Any]:
    """Return the process's streams for zeros: MLX gives each a thread, which stays."""
    return [mx.new_thread_unsafe_stream(mx.cpu) for _ in range(STREAMS)]


def allocate_payload(nbytes: int) -> Array:
    """Return an evaluated, owned, flat byte buffer with undefined content; from any thread. The
    host is to fill it, every byte, before others see it.

    The CPU makes it: nothing waits for a busy GPU. The first use brings it to a GPU's own memory.
    """
    # Of no bytes NumPy's memory makes an array that is no buffer.
    if 0 < nbytes < SMALL_BYTES:
        payload = mx.array(np.empty(nbytes, np.uint8))
    else:
        payload = mx.zeros(nbytes, mx.uint8, stream=mx.cpu)
    mx.eval(payload)
    return payload


def owned_copy(flat: Array) -> Array:
    """Return a lazy copy of a flat array: joining with nothing copies."""
    return mx.concatenate([flat, flat[:0]])


def _copy_of(payload: Array) -> Array:
    copy = owned_copy(payload)
    mx.eval(copy)
    return copy


def on_device(payload: Array) -> Array:
    """Return a payload that the host has filled in the device's own memory, if it has any,
    evaluated on the calling thread."""
    return _copy_of(payload) if has_memory_of_its_own() else payload


def host_copy(payload: Any) -> Any:
    """Return a payload's bytes where the host may read them; it stays where it is; from any
    thread."""
    return payload_view(_copy_of(payload)) if isinstance(payload, mx.array) else payload


def payload_view(payload: Any) -> HostView:
    """Return a payload's bytes where they are. One that fills a fresh payload is dropped before
    that is used."""
    return np.frombuffer(memoryview(payload), dtype=np.uint8)
