"""Arrays whose memory is about to be overwritten.

MLX zeroes what it allocates, which costs as much as the copy that follows. Its safetensors loader
does not, with a file object that leaves the memory as it is; but a stream then waits for the
interpreter's lock, and `mx.clear_cache` holds that lock while it waits for all streams: a process
whose model is fed meanwhile stands still for ever.

A small array of bytes is copied from NumPy's memory, which has anything in it: MLX does that on the
spot, without its stream's thread.
"""

from collections.abc import Mapping

import mlx.core as mx
import numpy as np

from omlx_cache.arrays.mlxio import Array, carrier, zeros
from omlx_cache_storage.page import TensorSpec

SMALL_BYTES = 256 * 1024


def blank_arrays(specs: Mapping[str, TensorSpec]) -> dict[str, Array]:
    """Return evaluated arrays that own their memory, whose content is undefined.

    Callable from any thread. The caller must write every byte before the arrays are seen by others.
    """
    arrays = {name: _blank(spec) for name, spec in specs.items()}
    mx.eval(list(arrays.values()))
    return arrays


def blank_bytes(nbytes: int) -> Array:
    """Return one flat byte array, as `blank_arrays` does."""
    return blank_arrays({"": TensorSpec("", "U8", (nbytes,))})[""]


def _blank(spec: TensorSpec) -> Array:
    if spec.nbytes < SMALL_BYTES and spec.dtype.startswith("U"):
        return mx.array(np.empty(spec.shape, carrier(spec.dtype)))
    return zeros(spec.shape, spec.dtype)
