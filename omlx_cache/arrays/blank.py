"""Arrays whose memory is about to be overwritten: MLX zeroes what it allocates, which costs as
much as the copy that follows.

MLX's safetensors loader allocates an array and lets the file fill it. A file that leaves the
memory as it is makes an array for the price of an allocation. On Linux it also asks for huge
pages first: taking fresh memory in pages of 4 KiB costs five times what writing to it does.

That detour takes 40 us. A small array is rather copied from NumPy's memory, which has anything in
it as well: MLX does that on the spot, without its stream's thread.
"""

import ctypes
import io
import json
import mmap
from collections.abc import Mapping
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np

from omlx_cache.arrays.mlxio import Array, carrier, dtype_of
from omlx_cache_storage.page import TensorSpec

SMALL_BYTES = 256 * 1024
_HUGE_PAGE = 2 * 1024 * 1024
_LENGTH_BYTES = 8


def blank_arrays(specs: Mapping[str, TensorSpec]) -> dict[str, Array]:
    """Return evaluated arrays that own their memory, whose content is undefined.

    CPU back end only; callable from any thread. The caller must write every byte before the
    arrays are seen by others: what lies there may be anybody's.
    """
    large = {name: spec for name, spec in specs.items() if spec.nbytes >= SMALL_BYTES}
    arrays: dict[str, Array] = {}
    if large:
        # The loader keeps names; numbers spare it whatever a name may contain.
        numbered = {str(i): spec for i, spec in enumerate(large.values())}
        file: Any = _BlankFile(numbered)
        loaded: Any = mx.load(file, format="safetensors")
        arrays = {name: loaded[str(i)] for i, name in enumerate(large)}
    for name, spec in specs.items():
        if name not in arrays:
            arrays[name] = _small(spec)
    mx.eval(list(arrays.values()))
    return arrays


def blank_bytes(nbytes: int) -> Array:
    """Return one flat byte array, as `blank_arrays` does."""
    return blank_arrays({"": TensorSpec("", "U8", (nbytes,))})[""]


def _small(spec: TensorSpec) -> Array:
    if spec.dtype.startswith("U"):
        return mx.array(np.empty(spec.shape, carrier(spec.dtype)))
    return mx.zeros(spec.shape, dtype=dtype_of(spec.dtype))


class _BlankFile(io.RawIOBase):
    """A safetensors file with a header for `specs` and data that reading leaves untouched."""

    name = "blank"

    def __init__(self, specs: Mapping[str, TensorSpec]) -> None:
        super().__init__()
        described: dict[str, object] = {}
        end = 0
        for name, spec in specs.items():
            start, end = end, end + spec.nbytes
            described[name] = {
                "dtype": spec.dtype,
                "shape": list(spec.shape),
                "data_offsets": [start, end],
            }
        text = json.dumps(described).encode()
        self._head = len(text).to_bytes(_LENGTH_BYTES, "little") + text
        self._size = len(self._head) + end
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        rest = self._head[self._at : self._at + target.nbytes]
        if rest:
            target[: len(rest)] = rest
            self._at += len(rest)
            return len(rest)
        _advise_huge_pages(target)
        self._at += target.nbytes
        return target.nbytes


def _advise_huge_pages(target: memoryview) -> None:
    """Ask for huge pages where whole ones fit; a system that has none ignores it."""
    if not hasattr(mmap, "MADV_HUGEPAGE") or target.nbytes < 2 * _HUGE_PAGE:
        return
    start = ctypes.addressof(ctypes.c_char.from_buffer(target))
    first = -(-start // _HUGE_PAGE) * _HUGE_PAGE
    last = (start + target.nbytes) // _HUGE_PAGE * _HUGE_PAGE
    _madvise()(first, last - first, mmap.MADV_HUGEPAGE)


@cache
def _madvise() -> Any:
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
