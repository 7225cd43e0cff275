"""Memory that is about to be overwritten: MLX's own, freed with its handle, and shown to nobody."""

import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from kit import zoo
from kit.drive import prefill, settings
from omlx_cache import BlockStore, PrefixCache
from omlx_cache.arrays.mlxio import (
    NAMES,
    SHARED_BYTES,
    SMALL_BYTES,
    allocate_payload,
    host_views,
    owned_zeros,
    payload_view,
)
from omlx_cache_storage.page import TensorSpec

TOKENS = [(5 * i * i + i) % 256 for i in range(700)]

on_a_cpu = pytest.mark.skipif(mx.default_device() != mx.cpu, reason="a GPU zeroes by itself")


def _specs(nbytes: int, dtype: str = "BF16", count: int = 5) -> dict[str, TensorSpec]:
    rows = -(-nbytes // (count * 8))
    names = map(str, range(count))
    return {name: TensorSpec(name, dtype, (1, 2, rows, 2)) for name in names}


def zeros(nbytes: int) -> list[mx.array]:
    return list(owned_zeros(_specs(nbytes)).values())


@pytest.mark.parametrize("nbytes", [0, 3, SMALL_BYTES, 2 * SMALL_BYTES])
def test_a_payload_comes_back_evaluated_and_writable(nbytes: int) -> None:
    payload = allocate_payload(nbytes)
    assert (payload.shape, payload.dtype) == ((nbytes,), mx.uint8)
    view = payload_view(payload)
    view[...] = 1
    del view
    assert (np.array(payload) == 1).all()


@on_a_cpu
@pytest.mark.parametrize("dtype", NAMES.values())
def test_every_dtype_and_shape_comes_back_evaluated_and_writable(dtype: str) -> None:
    shapes = {"large": (1, 2, 5000, 4), "small": (3, 1), "empty": (1, 4, 0, 8), "scalar": ()}
    arrays = owned_zeros({name: TensorSpec(name, dtype, shape) for name, shape in shapes.items()})
    assert {name: array.shape for name, array in arrays.items()} == shapes
    assert {NAMES[array.dtype] for array in arrays.values()} == {dtype}
    host_views([arrays["large"]])[0][...] = 1
    assert (host_views([arrays["large"]])[0] == 1).all()


@on_a_cpu
@pytest.mark.parametrize("dtype", ["BF16", "F32", "U8", "BOOL"])
@pytest.mark.parametrize("nbytes", [0, SHARED_BYTES // 64, 4 * SHARED_BYTES])
def test_large_zeros_are_writable_zeros_of_the_wanted_form(dtype: str, nbytes: int) -> None:
    specs = _specs(nbytes, dtype)
    made = owned_zeros(specs)
    forms = {name: (NAMES[a.dtype], a.shape) for name, a in made.items()}
    assert forms == {name: (spec.dtype, spec.shape) for name, spec in specs.items()}
    begun = list(made.values())
    views = host_views(begun)
    assert not any(view.any() for view in views)
    for number, view in enumerate(views):
        view[...] = number % 2
    del views
    for number, view in enumerate(host_views(begun)):
        assert (view == number % 2).all()


@pytest.mark.parametrize("make", [lambda nbytes: [allocate_payload(nbytes)], zeros])
def test_the_memory_is_mlx_own_and_is_freed(make: Callable[[int], list[mx.array]]) -> None:
    gc.collect()
    before = mx.get_active_memory()
    made = make(4 * SHARED_BYTES)
    assert mx.get_active_memory() - before == pytest.approx(4 * SHARED_BYTES, rel=0.01)
    del made
    gc.collect()
    assert mx.get_active_memory() - before < SHARED_BYTES // 100


def test_no_two_arrays_share_memory() -> None:
    arrays = [allocate_payload(SMALL_BYTES) for _ in range(8)]
    for i, array in enumerate(arrays):
        payload_view(array)[:] = i
    for i, array in enumerate(arrays):
        assert (np.array(array) == i).all()


@on_a_cpu
def test_the_first_update_of_zeros_copies_nothing() -> None:
    array = zeros(4 * SHARED_BYTES).pop()
    (view,) = host_views([array])
    address = view.ctypes.data
    del view
    array[:, :, 1:2] = 1
    mx.eval(array)
    (view,) = host_views([array])
    assert view.ctypes.data == address


@pytest.mark.parametrize("hot_bytes", [1 << 24, 0], ids=["hot", "cold"])
def test_room_to_grow_shows_nothing_of_what_the_memory_held_before(
    tmp_path: Path, hot_bytes: int
) -> None:
    model = zoo.build("qwen3")
    with BlockStore(settings(tmp_path, hot_bytes=hot_bytes, block_size=64)) as store:
        cache = PrefixCache(model, store)
        with cache.session(TOKENS) as session:
            prefill(model, session, 256)
            session.commit()
        assert store.flush()
        for _ in range(5):
            # Buffers of the sizes that a restore allocates are filled and freed.
            eighth = session.prompt_cache[0].keys.nbytes * 2
            mx.eval([mx.ones((n * eighth,), dtype=mx.uint8) for n in range(1, 8)])
            restored = cache.session(TOKENS, max_new_tokens=2000)
            assert restored.cached_tokens == len(TOKENS) - 1
            for layer in restored.prompt_cache:
                for array in (layer.keys, layer.values):
                    assert array.shape[2] >= len(TOKENS) + 2000
                    assert not np.array(array[:, :, len(TOKENS) :].astype(mx.float32)).any()


def test_a_thread_that_empties_mlx_cache_meanwhile_waits_for_nobody() -> None:
    """`mx.clear_cache` waits for all streams, and holds the interpreter's lock meanwhile: what a
    stream does for these arrays must not need that lock."""
    script = """
import threading
import mlx.core as mx
from omlx_cache.arrays.mlxio import allocate_payload

def make():
    for _ in range(1000):
        allocate_payload(1 << 16)

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


@on_a_cpu
def test_threads_begin_and_await_them_while_mlx_cache_is_emptied() -> None:
    """`mx.clear_cache` waits for all streams with the interpreter's lock held: what zeroes must not
    need it. The streams are shared, and one thread awaits what another began."""
    script = """
import threading
from queue import SimpleQueue
import mlx.core as mx
from omlx_cache.arrays.mlxio import SHARED_BYTES, owned_zeros
from omlx_cache.arrays.mlxio import evaluate, host_views
from omlx_cache_storage.page import TensorSpec

specs = {n: TensorSpec(n, "U8", (SHARED_BYTES // 16,)) for n in map(str, range(17))}
begun, wrong = SimpleQueue(), []

def begin():
    for _ in range(25):
        begun.put(list(owned_zeros(specs).values()))

def take():
    for _ in range(25):
        zeros = begun.get()
        for view in host_views(zeros):
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
