"""TurboQuant in one kernel on a GPU: used only where a check found the plain form's very bits. A
kernel that cannot be made, or whose bits differ, is off for the process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from math import prod
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from . import turbo_source as source
from .turbo_tables import Tables

Encode = Callable[[mx.array], tuple[mx.array, mx.array]]
Decode = Callable[[mx.array, mx.array, mx.Dtype], mx.array]

_LOG = logging.getLogger(__name__)
_THREADS = 256
_SAMPLE_ROWS = 4096
_CHECKING = threading.Lock()


class Form(NamedTuple):
    """The properties for which a kernel is made; `corrected` does not matter in decoding."""

    dim: int
    bits: int
    dtype: mx.Dtype
    corrected: bool = False


_FOUND: dict[tuple[str, Form], Any] = {}
"""Which kernels gave the plain form's bits; None for a form that has none."""


def encode(
    form: Form, tables: Tables, x: mx.array, plain: Encode
) -> tuple[mx.array, mx.array] | None:
    """Return lazy norms (float16) and words of `x`, or None where the `plain` form is to run: the
    kernel is checked against it, with norms in float32, once."""
    kernel = _checked("encode", form, lambda: _matching_encoder(form, tables, plain))
    return None if kernel is None or not x.size else _encode(kernel, form, tables, x, mx.float16)


def decode(
    form: Form, tables: Tables, norms: mx.array, words: mx.array, plain: Decode
) -> mx.array | None:
    kernel = _checked("decode", form, lambda: _matching_decoder(form, tables, plain))
    return None if kernel is None or not words.size else _decode(kernel, form, tables, norms, words)


def _checked(what: str, form: Form, find: Callable[[], Any]) -> Any:
    if not available() or form.dim not in source.DIMS or form.bits not in source.BITS:
        return None
    with _CHECKING:
        if (what, form) not in _FOUND:
            try:
                kernel, problem = find(), "its bits differ from the plain form's"
            except Exception as error:
                kernel, problem = None, f"{type(error).__name__}: {error}"
            if kernel is None:
                _LOG.warning("no fused kernel to %s %s: %s", what, form, problem)
            _FOUND[what, form] = kernel
        return _FOUND[what, form]


def available() -> bool:
    """True where MLX computes on a GPU for which it makes kernels from source."""
    return _maker() is not None and mx.default_device() == mx.gpu


@lru_cache(1)
def _maker() -> Callable[..., Any] | None:
    if mx.metal.is_available():
        return mx.fast.metal_kernel
    return mx.fast.cuda_kernel if mx.cuda.is_available() else None


def _matching_encoder(form: Form, tables: Tables, plain: Encode) -> Any:
    sample = _sample(form)
    norms, words = plain(sample)
    mx.eval(sample, norms, words)
    for order in source.SUMS:
        body = source.encode_source(form.dim, form.bits, corrected=form.corrected, order=order)
        kernel = _make("encode", body, ["x", "signs", "edges", "levels"], ["norms", "words"])
        # In float32, where a sum in another order shows.
        wide = _encode(kernel, form, tables, sample, mx.float32)
        if _same(wide[0], norms) and _same(wide[1], words):
            narrow = _encode(kernel, form, tables, sample, mx.float16)
            if _same(narrow[0], norms.astype(mx.float16)) and _same(narrow[1], words):
                return kernel
    return None


def _matching_decoder(form: Form, tables: Tables, plain: Decode) -> Any:
    key = mx.random.key(form.dim)
    shape = (_SAMPLE_ROWS, form.dim * form.bits // 32)
    words = mx.array(np.random.default_rng(form.dim).integers(0, 1 << 32, shape, np.uint32))
    norms = (mx.random.normal((_SAMPLE_ROWS,), key=key) * 20).astype(mx.float16)
    expected = plain(norms, words, form.dtype)
    mx.eval(words, norms, expected)
    body = source.decode_source(form.dim, form.bits)
    kernel = _make("decode", body, ["words", "norms", "signs", "levels"], ["out"])
    return kernel if _same(_decode(kernel, form, tables, norms, words), expected) else None


def _sample(form: Form) -> mx.array:
    """Return vectors of many sizes: zeros, and some with loud channels, among them."""
    key = mx.random.key(form.dim * form.bits)
    drawn = mx.random.normal((_SAMPLE_ROWS, form.dim), key=key)
    sizes = mx.exp(mx.random.normal((_SAMPLE_ROWS, 1), key=key))
    loud = mx.arange(form.dim) % 31 == 0
    drawn = mx.where(loud, drawn * 20, drawn) * sizes
    return mx.where(mx.arange(_SAMPLE_ROWS)[:, None] % 64 == 0, 0, drawn).astype(form.dtype)


def _same(ours: mx.array, plain: mx.array) -> bool:
    unsigned = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32}[plain.itemsize]
    equal = ours.shape == plain.shape and ours.dtype == plain.dtype
    return equal and bool(mx.array_equal(ours.view(unsigned), plain.view(unsigned)).item())


def _make(what: str, body: str, inputs: list[str], outputs: list[str]) -> Any:
    maker = _maker()
    assert maker is not None
    on_metal = mx.metal.is_available()
    header = source.METAL_HEADER if on_metal else source.CUDA_HEADER
    text = (source.METAL_THREAD if on_metal else source.CUDA_THREAD) + body
    # MLX keeps compiled kernels by name, on the disk too: another source is another name.
    digest = sha256(f"{header}{text}".encode()).hexdigest()[:16]
    return maker(
        name=f"omlx_cache_turbo_{what}_{digest}",
        input_names=inputs,
        output_names=outputs,
        source=text,
        header=header,
    )


def _encode(
    kernel: Any, form: Form, tables: Tables, x: mx.array, norm_dtype: mx.Dtype
) -> tuple[mx.array, mx.array]:
    leading = x.shape[:-1]
    rows, words = prod(leading), form.dim * form.bits // 32
    norms, packed = kernel(
        inputs=[x.reshape(rows, form.dim), tables.mixing, tables.edges, tables.levels],
        template=[("T", form.dtype), ("H", norm_dtype)],
        grid=(_lanes(rows, form.dim), 1, 1),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[(rows,), (rows, words)],
        output_dtypes=[norm_dtype, mx.uint32],
    )
    return norms.reshape(leading), packed.reshape(*leading, words)


def _decode(kernel: Any, form: Form, tables: Tables, norms: mx.array, words: mx.array) -> mx.array:
    leading = words.shape[:-1]
    rows = prod(leading)
    (out,) = kernel(
        inputs=[words.reshape(rows, -1), norms.reshape(rows), tables.mixing, tables.levels],
        template=[("T", form.dtype)],
        grid=(_lanes(rows, form.dim), 1, 1),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[(rows, form.dim)],
        output_dtypes=[form.dtype],
    )
    tensor: mx.array = out.reshape(*leading, form.dim)
    return tensor


def _lanes(rows: int, dim: int) -> int:
    """Return the threads to start: whole groups, since lanes wait for each other."""
    return -(-rows * (dim // source.LANE) // _THREADS) * _THREADS
