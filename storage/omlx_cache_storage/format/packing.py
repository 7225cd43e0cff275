"""Lossless packing of pages of 2-byte floats: high bytes, with sign and exponent, compressed by
zstd, low bytes, which are noise, as they are. `docs/codecs.md` has the frame byte by byte.

`pack` makes a frame of a payload, and `wrap` a page whose one tensor is that frame, for the disk or
the way. Only pages that no codec has encoded are wrapped, and only when that saves a tenth. Its
codec text describes the page inside, so that readers see that as it was. zstd comes with Python
3.14 or from the optional extra `zstd`.
"""

import json
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

import xxhash

from omlx_cache_storage.errors import CorruptPage, UndecodablePage
from omlx_cache_storage.format.header import tensor_spec
from omlx_cache_storage.page import ITEM_BYTES, Buffer, Page, PageMeta, TensorSpec

MAGIC: Final = b"OMLXPLN1"
LEVEL: Final = 1
MIN_SAVING: Final = 0.10
_FIELDS: Final = struct.Struct("<8sQQQ")
_CHECK: Final = struct.Struct("<Q")
HEADER_BYTES: Final = _FIELDS.size + _CHECK.size
_MAX_WINDOW_LOG: Final = 23
"""Level 1 never needs more than 8 MiB of history; a frame that asks for more is not ours."""

PACKING = "planes/"
"""How the codec text of a wrapped page begins, of any version."""
_PREFIX = f"{PACKING}1 "
_DENSE = "dense"


def available() -> bool:
    try:
        zstd()
    except UndecodablePage:
        return False
    return True


def pack(raw: Buffer) -> bytes | None:
    """Return the frame of a page of 2-byte elements, None where it saves less than a tenth; does
    not mutate, needs 1.5 times the page's memory. Raises ValueError for an empty page and
    UndecodablePage without the extra."""
    import numpy as np

    page = np.frombuffer(memoryview(raw).cast("B"), dtype="<u2")
    if page.size == 0:
        raise ValueError("an empty page cannot be packed")
    low = page.astype(np.uint8)
    high = zstd().compress((page >> 8).astype(np.uint8).data, level=LEVEL)
    if HEADER_BYTES + low.nbytes + len(high) > (1 - MIN_SAVING) * page.nbytes:
        return None
    fields = _FIELDS.pack(MAGIC, page.nbytes, len(high), xxhash.xxh3_64_intdigest(page.data))
    return b"".join((fields, _CHECK.pack(xxhash.xxh3_64_intdigest(fields)), low.data, high))


def unpack(frame: Buffer, raw_size: int) -> bytearray:
    """Return the page; allocates only the caller's `raw_size` bytes, after checking that. Raises
    CorruptPage for anything but a sound frame of a page of `raw_size` bytes, and UndecodablePage
    without the extra."""
    import numpy as np

    view = memoryview(frame).cast("B")
    high_size, checksum = _read_header(view, raw_size)
    half = raw_size // 2
    low = np.frombuffer(view[HEADER_BYTES : HEADER_BYTES + half], dtype=np.uint8)
    high = np.frombuffer(_decompress(view[-high_size:], half), dtype=np.uint8)
    raw = bytearray(raw_size)
    page = np.frombuffer(raw, dtype="<u2")
    np.left_shift(high, 8, out=page, dtype=np.uint16)
    np.bitwise_or(page, low, out=page)
    if xxhash.xxh3_64_intdigest(raw) != checksum:
        raise CorruptPage("the page does not match its checksum")
    return raw


def _read_header(view: memoryview, raw_size: int) -> tuple[int, int]:
    if view.nbytes < HEADER_BYTES:
        raise CorruptPage(f"{view.nbytes} bytes are too few for a header of byte planes")
    fields = view[: _FIELDS.size]
    magic, stated, high_size, checksum = _FIELDS.unpack(fields)
    (check,) = _CHECK.unpack(view[_FIELDS.size : HEADER_BYTES])
    if magic != MAGIC or check != xxhash.xxh3_64_intdigest(fields):
        raise CorruptPage("not the header of byte planes, or it does not match its checksum")
    if stated != raw_size or stated == 0 or stated % 2:
        raise CorruptPage(f"the frame is of a page of {stated} bytes, {raw_size} were expected")
    if high_size == 0 or view.nbytes != HEADER_BYTES + stated // 2 + high_size:
        raise CorruptPage(f"{view.nbytes} bytes do not fit the sizes in the header")
    return high_size, checksum


def _decompress(packed: memoryview, size: int) -> Any:
    """Return exactly `size` bytes; never allocates more, whatever the frame claims of itself."""
    codec = zstd()
    try:
        if codec.__name__ == "zstandard":
            decoder = codec.ZstdDecompressor(max_window_size=1 << _MAX_WINDOW_LOG)
            with decoder.stream_reader(packed) as reader:
                plane = reader.read(size + 1)
        else:
            options = {codec.DecompressionParameter.window_log_max: _MAX_WINDOW_LOG}
            plane = codec.ZstdDecompressor(options=options).decompress(packed, size + 1)
    except codec.ZstdError as error:
        raise CorruptPage(f"the high plane is no zstd frame: {error}") from None
    if len(plane) != size:
        raise CorruptPage(f"the high plane does not have {size} bytes")
    return plane


def zstd() -> Any:
    """Return Python's own zstd, or the package; raises UndecodablePage without the extra."""
    for name in ("compression.zstd", "zstandard"):
        with suppress(ModuleNotFoundError):
            return import_module(name)
    raise UndecodablePage("zstd needs the extra: pip install 'omlx-cache[zstd]'")


def wrap(page: Page) -> Page:
    """Return the page packed, or the same page when that does not pay; copies nothing then."""
    meta = page.meta
    widths = {ITEM_BYTES[spec.dtype] for spec in meta.tensors if spec.nbytes}
    if meta.codec != _DENSE or widths != {2}:
        return page
    packed = pack(page.payload)
    if packed is None:
        return page
    inner = [[spec.name, spec.dtype, list(spec.shape)] for spec in meta.tensors]
    frame = TensorSpec("planes", "U8", (len(packed),))
    return Page(
        replace(meta, codec=_PREFIX + json.dumps(inner, separators=(",", ":")), tensors=(frame,)),
        packed,
    )


def unwrapped(meta: PageMeta) -> PageMeta:
    """Return the description of the page inside a wrapped one; a page that is not wrapped as it is,
    the same object. Raises CorruptPage for a text that cannot be read, UndecodablePage for another
    version's."""
    if not meta.codec.startswith(PACKING):
        return meta
    if not meta.codec.startswith(_PREFIX):
        raise UndecodablePage(f"the packing {meta.codec[:40]!r} is not {_PREFIX.strip()}")
    try:
        tensors = tuple(
            tensor_spec(name, dtype, shape)
            for name, dtype, shape in json.loads(meta.codec.removeprefix(_PREFIX))
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptPage(f"the wrapped page's tensors cannot be read: {error}") from error
    inner_meta = replace(meta, codec=_DENSE, tensors=tensors)
    # A reader reserves memory for a page first, by the size that this text gives.
    if not HEADER_BYTES + inner_meta.nbytes // 2 < meta.nbytes < inner_meta.nbytes:
        raise CorruptPage(f"{meta.nbytes} bytes cannot hold a page of {inner_meta.nbytes}")
    return inner_meta


def unwrap_into(frame: Buffer, nbytes: int, pieces: Sequence[Buffer]) -> None:
    """Fill the pieces, payload order, with the payload of `nbytes` that a frame holds; raises as
    `unpack` does."""
    payload, start = memoryview(unpack(frame, nbytes)), 0
    for piece in pieces:
        view = memoryview(piece)
        if view.nbytes:
            view.cast("B")[:] = payload[start : start + view.nbytes]
        start += view.nbytes
