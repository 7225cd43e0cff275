"""Arrays whose memory is about to be overwritten.

MLX zeroes what it allocates, which costs as much as the copy that follows. Its safetensors loader
does not, with a file object that leaves the memory as it is; but a stream then waits for the
interpreter's lock, and `mx.clear_cache` holds that lock while it waits for all streams: a process
whose model is fed meanwhile stands still for ever.
"""

from collections.abc import Mapping

import mlx.core as mx

from omlx_cache.arrays.mlxio import Array, allocate_payload, zeros
from omlx_cache_storage.page import TensorSpec


def blank_arrays(specs: Mapping[str, TensorSpec]) -> dict[str, Array]:
    """Return evaluated arrays that own their memory; callable from any thread."""
    arrays = {name: zeros(spec.shape, spec.dtype) for name, spec in specs.items()}
    mx.eval(list(arrays.values()))
    return arrays


def blank_bytes(nbytes: int) -> Array:
    """Return one flat byte array, as `blank_arrays` does."""
    return allocate_payload(nbytes)
