"""Large zeros are made by several streams at once, for whichever thread wants them."""

import gc
import subprocess
import sys

import mlx.core as mx
import pytest

from omlx_cache.arrays.mlxio import SHARED_BYTES, begin_zeros, dtype_name, evaluate, host_views
from omlx_cache_storage.page import TensorSpec

pytestmark = pytest.mark.skipif(mx.default_device() != mx.cpu, reason="a GPU zeroes by itself")


def _specs(nbytes: int, dtype: str = "BF16", count: int = 5) -> list[TensorSpec]:
    rows = -(-nbytes // (count * 8))
    return [TensorSpec(str(number), dtype, (1, 2, rows, 2)) for number in range(count)]


@pytest.mark.parametrize("dtype", ["BF16", "F32", "U8", "BOOL"])
@pytest.mark.parametrize("nbytes", [0, SHARED_BYTES // 64, 4 * SHARED_BYTES])
def test_they_are_writable_zeros_of_the_wanted_form(dtype: str, nbytes: int) -> None:
    specs = _specs(nbytes, dtype)
    zeros = begin_zeros(specs)
    evaluate(zeros.arrays)
    assert [(dtype_name(a), a.shape) for a in zeros.arrays] == [(s.dtype, s.shape) for s in specs]
    views = host_views(zeros.arrays)
    assert not any(view.any() for view in views)
    for number, view in enumerate(views):
        view[...] = number % 2
    del views
    for number, view in enumerate(host_views(zeros.arrays)):
        assert (view == number % 2).all()


def test_only_large_ones_are_left_to_other_threads() -> None:
    assert begin_zeros(_specs(SHARED_BYTES // 2)).ready
    zeros = begin_zeros(_specs(2 * SHARED_BYTES))
    assert not zeros.ready
    evaluate(zeros.arrays)


def test_their_memory_is_mlx_own_and_is_freed() -> None:
    gc.collect()
    before = mx.get_active_memory()
    zeros = begin_zeros(_specs(4 * SHARED_BYTES))
    evaluate(zeros.arrays)
    assert mx.get_active_memory() - before == pytest.approx(4 * SHARED_BYTES, rel=0.01)
    del zeros
    gc.collect()
    assert mx.get_active_memory() - before < SHARED_BYTES // 100


def test_the_first_update_of_one_copies_nothing() -> None:
    zeros = begin_zeros(_specs(4 * SHARED_BYTES))
    evaluate(zeros.arrays)
    array = zeros.arrays.pop()
    (view,) = host_views([array])
    address = view.ctypes.data
    del view
    array[:, :, 1:2] = 1
    mx.eval(array)
    (view,) = host_views([array])
    assert view.ctypes.data == address


def test_threads_begin_and_await_them_while_mlx_cache_is_emptied() -> None:
    """`mx.clear_cache` waits for all streams with the interpreter's lock held: what zeroes must not
    need it. The streams are shared, and one thread awaits what another began."""
    script = """
import threading
from queue import SimpleQueue
import mlx.core as mx
from omlx_cache.arrays.mlxio import SHARED_BYTES, begin_zeros
from omlx_cache.arrays.mlxio import evaluate, host_views
from omlx_cache_storage.page import TensorSpec

specs = [TensorSpec(str(n), "U8", (SHARED_BYTES // 16,)) for n in range(17)]
begun, wrong = SimpleQueue(), []

def begin():
    for _ in range(25):
        begun.put(begin_zeros(specs))

def take():
    for _ in range(25):
        zeros = begun.get()
        evaluate(zeros.arrays)
        for view in host_views(zeros.arrays):
            wrong.extend([1] if view.any() else [])
            view[...] = 7

threads = [threading.Thread(target=work) for work in (begin, begin, take, take)]
for thread in threads:
    thread.start()
while any(thread.is_alive() for thread in threads):
    freed = mx.ones((1 << 16,))
    mx.eval(freed)
    del freed
    mx.clear_cache()
assert not wrong
"""
    # A process of its own: one that hangs so cannot be helped.
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
