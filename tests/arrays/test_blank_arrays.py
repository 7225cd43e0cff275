import gc
import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest

from omlx_cache.arrays.mlxio import blank_arrays, blank_bytes, dtype_name, host_view
from omlx_cache_storage.page import ITEM_BYTES, TensorSpec

SMALL_BYTES = 64 * 1024
DTYPES = sorted(set(ITEM_BYTES) - {"F8_E4M3", "F64"})


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_shape_comes_back_evaluated_and_writable(dtype: str) -> None:
    rows = -(-2 * SMALL_BYTES // (8 * ITEM_BYTES[dtype]))
    shapes = {"large": (1, 2, rows, 4), "small": (3, 1), "empty": (1, 4, 0, 8), "scalar": ()}
    specs = {name: TensorSpec(name, dtype, shape) for name, shape in shapes.items()}
    arrays = blank_arrays(specs)
    assert {name: array.shape for name, array in arrays.items()} == shapes
    assert {dtype_name(array) for array in arrays.values()} == {dtype}
    view = host_view(arrays["large"])
    view[...] = 1
    del view
    again = host_view(arrays["large"])
    assert (again == 1).all()


def test_the_memory_is_mlx_own_and_is_freed() -> None:
    nbytes = 16 << 20
    gc.collect()
    before = mx.get_active_memory()
    payload = blank_bytes(nbytes)
    assert mx.get_active_memory() - before == pytest.approx(nbytes, rel=0.01)
    np.array(payload, copy=False)[:] = 7
    assert int(mx.sum(payload.astype(mx.uint32)).item()) == 7 * nbytes
    del payload
    gc.collect()
    assert mx.get_active_memory() - before < nbytes // 100


def test_no_two_arrays_share_memory() -> None:
    specs = {str(i): TensorSpec(str(i), "U8", (SMALL_BYTES,)) for i in range(8)}
    arrays = blank_arrays(specs)
    for i, array in enumerate(arrays.values()):
        np.array(array, copy=False)[:] = i
    for i, array in enumerate(arrays.values()):
        assert (np.array(array) == i).all()


def test_a_thread_that_empties_mlx_cache_meanwhile_waits_for_nobody() -> None:
    """`mx.clear_cache` waits for all streams, and holds the interpreter's lock meanwhile: what a
    stream does for these arrays must not need that lock."""
    script = """
import threading
import mlx.core as mx
from omlx_cache.arrays.mlxio import blank_bytes

def make():
    for _ in range(1000):
        blank_bytes(1 << 16)

thread = threading.Thread(target=make)
thread.start()
while thread.is_alive():
    freed = mx.ones((1 << 16,))
    mx.eval(freed)
    del freed
    mx.clear_cache()
"""
    # A process of its own: one that hangs so cannot be helped.
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)
