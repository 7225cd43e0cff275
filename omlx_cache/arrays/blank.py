"""Arrays whose memory is about to be overwritten.

MLX zeroes what it allocates, which costs as much as the copy that follows. Its safetensors loader
does not, with a file object that leaves the memory as it is; but a stream then waits for the
interpreter's lock, and `mx.clear_cache` holds that lock while it waits for all streams: a process
whose model is fed meanwhile stands still for ever.

A small array of bytes is copied from NumPy's memory, which has anything in it: MLX does that on the
spot, without its stream's thread. Large ones are zeroed by several threads, each of which has a
stream of its own: one core writes new memory at a fraction of what the machine can.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future

import mlx.core as mx
import numpy as np

from omlx_cache.arrays.mlxio import Array, carrier, evaluate, on_host, zeros
from omlx_cache_storage.page import TensorSpec

SMALL_BYTES = 256 * 1024
SHARE_BYTES = 8 << 20
"""What is worth a thread: zeroing it takes a millisecond or more, and waking one a fraction."""
SHARES = min(4, os.cpu_count() or 1)


def blank_arrays(specs: Mapping[str, TensorSpec]) -> dict[str, Array]:
    """Return evaluated arrays that own their memory, whose content is undefined.

    Callable from any thread. The caller must write every byte before the arrays are seen by others.
    """
    arrays = {name: _blank(spec) for name, spec in specs.items()}
    mx.eval(list(arrays.values()))
    return arrays


def begin_zeroed(specs: Sequence[TensorSpec], pool: Executor | None) -> list["Future[list[Array]]"]:
    """Begin to make evaluated zeros that own their memory; their futures together have all, in
    order.

    Callable from any thread. Large ones are made on the pool's threads, which should wait for no
    disk; small ones, those of a GPU and those without a pool are there when this returns.
    """
    if pool is None or not on_host() or sum(spec.nbytes for spec in specs) < SHARE_BYTES:
        made: Future[list[Array]] = Future()
        made.set_result(_zeroed(specs))
        return [made]
    return [pool.submit(_zeroed, share) for share in _shares(specs)]


def _zeroed(specs: Sequence[TensorSpec]) -> list[Array]:
    # MLX evaluates an array on the thread that asked for it.
    arrays = [zeros(spec.shape, spec.dtype) for spec in specs]
    evaluate(arrays)
    return arrays


def _shares(specs: Sequence[TensorSpec]) -> list[list[TensorSpec]]:
    """Divide arrays into about equal shares for threads, one at least."""
    size = max(-(-sum(spec.nbytes for spec in specs) // SHARES), SHARE_BYTES)
    shares: list[list[TensorSpec]] = [[]]
    nbytes = 0
    for spec in specs:
        if nbytes >= size:
            shares.append([])
            nbytes = 0
        shares[-1].append(spec)
        nbytes += spec.nbytes
    return shares


def blank_bytes(nbytes: int) -> Array:
    """Return one flat byte array, as `blank_arrays` does."""
    return blank_arrays({"": TensorSpec("", "U8", (nbytes,))})[""]


def _blank(spec: TensorSpec) -> Array:
    if spec.nbytes < SMALL_BYTES and spec.dtype.startswith("U"):
        return mx.array(np.empty(spec.shape, carrier(spec.dtype)))
    return zeros(spec.shape, spec.dtype)
