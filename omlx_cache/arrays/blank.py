"""Arrays whose memory is about to be overwritten.

MLX zeroes what it allocates, which costs as much as the copy that follows. Its safetensors loader
does not, with a file object that leaves the memory as it is; but a stream then waits for the
interpreter's lock, and `mx.clear_cache` holds that lock while it waits for all streams: a process
whose model is fed meanwhile stands still for ever.

A small array of bytes is copied from NumPy's memory, which has anything in it: MLX does that on the
spot, without its stream's thread. Large ones are zeroed by several streams: one core writes new
memory at a fraction of what the machine can. The memory is still allocated by the thread that asks,
since the system's allocator keeps what other threads had for those.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from omlx_cache.arrays.mlxio import Array, carrier, evaluate, on_host, zeros
from omlx_cache_storage.page import TensorSpec

SMALL_BYTES = 256 * 1024
SHARED_BYTES = 8 << 20
"""What several streams zero: less takes one of them a millisecond, and waking more a fraction."""
STREAMS = min(4, os.cpu_count() or 1)

_dispatching = threading.Lock()
"""Held while tasks are given to the shared streams, which MLX leaves to their user to guard."""


class Zeros(NamedTuple):
    """Zeros that may still be written: `evaluate` waits for them, on any thread."""

    arrays: list[Array]
    ready: bool


def blank_arrays(specs: Mapping[str, TensorSpec]) -> dict[str, Array]:
    """Return evaluated arrays that own their memory, whose content is undefined.

    Callable from any thread. The caller must write every byte before the arrays are seen by others.
    """
    arrays = {name: _blank(spec) for name, spec in specs.items()}
    mx.eval(list(arrays.values()))
    return arrays


def begin_zeros(specs: Sequence[TensorSpec]) -> Zeros:
    """Begin to make zeros that own their memory, and return; callable from any thread.

    Few bytes, and those of a GPU, are there when this returns.
    """
    if not on_host() or sum(spec.nbytes for spec in specs) < SHARED_BYTES:
        arrays = [zeros(spec.shape, spec.dtype) for spec in specs]
        evaluate(arrays)
        return Zeros(arrays, ready=True)
    with _dispatching:
        streams = _streams()
        arrays = [
            zeros(spec.shape, spec.dtype, streams[number % len(streams)])
            for number, spec in enumerate(specs)
        ]
        mx.async_eval(arrays)
    return Zeros(arrays, ready=False)


@cache
def _streams() -> list[Any]:
    """Return the process's streams for zeros: MLX gives each a thread, which stays."""
    return [mx.new_thread_unsafe_stream(mx.cpu) for _ in range(STREAMS)]


def blank_bytes(nbytes: int) -> Array:
    """Return one flat byte array, as `blank_arrays` does."""
    return blank_arrays({"": TensorSpec("", "U8", (nbytes,))})[""]


def _blank(spec: TensorSpec) -> Array:
    if spec.nbytes < SMALL_BYTES and spec.dtype.startswith("U"):
        return mx.array(np.empty(spec.shape, carrier(spec.dtype)))
    return zeros(spec.shape, spec.dtype)
