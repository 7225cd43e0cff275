"""Lossless packing of pages of 2-byte floats: high bytes compressed by zstd, low bytes as they are.

The high byte of a float16 or bfloat16 holds sign and exponent and repeats; the low byte is noise,
on which compression only loses time. Frame, little-endian:

    0   8  magic "OMLXPLN1"
    8   8  size of the raw page, n (even)
    16  8  size of the packed high plane, m
    24  8  xxh3-64 of the raw page
    32  8  xxh3-64 of the 32 bytes above
    40  n/2  low plane
    ..  m    zstd frame of the high plane; nothing follows

zstd comes with Python 3.14 or from the optional extra `zstd`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from importlib import import_module, util
from typing import Any, Final

import numpy as np
import xxhash

from omlx_cache_storage.page import Buffer

MAGIC: Final = b"OMLXPLN1"
LEVEL: Final = 1
MIN_SAVING: Final = 0.10
_FIELDS: Final = struct.Struct("<8sQQQ")
_CHECK: Final = struct.Struct("<Q")
HEADER_BYTES: Final = _FIELDS.size + _CHECK.size
_MAX_WINDOW_LOG: Final = 23
"""Level 1 never needs more than 8 MiB of history; a frame that asks for more is not ours."""


class BadFrame(ValueError):
    """Bytes that are no sound frame of the expected page."""


class ZstdMissing(RuntimeError):
    """Neither Python's own zstd nor the `zstandard` package is installed."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A frame worth keeping, and the share of the raw bytes that it saves."""

    frame: bytes
    saving: float


@dataclass(frozen=True, slots=True)
class NotWorthIt:
    """The page does not shrink by a tenth: keep it raw."""

    saving: float


def available() -> bool:
    """Say whether this Python has a zstd."""
    return _stdlib_zstd() or util.find_spec("zstandard") is not None


def pack(raw: Buffer) -> Packed | NotWorthIt:
    """Return the frame of a page of 2-byte elements; does not mutate, needs 1.5 times its memory.

    Raises ValueError for an odd or empty page and ZstdMissing without the extra.
    """
    page = np.frombuffer(memoryview(raw).cast("B"), dtype="<u2")
    if page.size == 0:
        raise ValueError("an empty page cannot be packed")
    low = page.astype(np.uint8)
    high = _compress((page >> 8).astype(np.uint8).data)
    saving = 1 - (HEADER_BYTES + low.nbytes + len(high)) / page.nbytes
    if saving < MIN_SAVING:
        return NotWorthIt(saving)
    fields = _FIELDS.pack(MAGIC, page.nbytes, len(high), xxhash.xxh3_64_intdigest(page.data))
    check = _CHECK.pack(xxhash.xxh3_64_intdigest(fields))
    return Packed(b"".join((fields, check, low.data, high)), saving)


def can_hold(frame_bytes: int, raw_size: int) -> bool:
    """Say whether a frame of this size may be of a page of that size: between a half and all."""
    return HEADER_BYTES + raw_size // 2 < frame_bytes < raw_size


def unpack(frame: Buffer, raw_size: int) -> bytearray:
    """Return the page; allocates only what the caller says the page has, after checking that.

    Raises BadFrame for anything but a sound frame of a page of `raw_size` bytes.
    """
    view = memoryview(frame).cast("B")
    _read_header(view, raw_size)
    page = bytearray(raw_size)
    unpack_into(view, memoryview(page))
    return page


def unpack_into(frame: Buffer, destination: memoryview) -> None:
    """Fill a writable buffer of exactly the page's size; on BadFrame its content is undefined."""
    view = memoryview(frame).cast("B")
    target = destination.cast("B")
    high_size, checksum = _read_header(view, target.nbytes)
    half = target.nbytes // 2
    low = np.frombuffer(view[HEADER_BYTES : HEADER_BYTES + half], dtype=np.uint8)
    high = np.frombuffer(_decompress(view[-high_size:], half), dtype=np.uint8)
    page = np.frombuffer(target, dtype="<u2")
    np.left_shift(high, 8, out=page, dtype=np.uint16)
    np.bitwise_or(page, low, out=page)
    if xxhash.xxh3_64_intdigest(target) != checksum:
        raise BadFrame("the page does not match its checksum")


def _read_header(view: memoryview, raw_size: int) -> tuple[int, int]:
    """Return the packed high plane's size and the page's checksum, once every field agrees."""
    if view.nbytes < HEADER_BYTES:
        raise BadFrame(f"{view.nbytes} bytes are too few for a header")
    fields = view[: _FIELDS.size]
    magic, stated, high_size, checksum = _FIELDS.unpack(fields)
    (check,) = _CHECK.unpack(view[_FIELDS.size : HEADER_BYTES])
    if magic != MAGIC:
        raise BadFrame("not a frame of byte planes")
    if check != xxhash.xxh3_64_intdigest(fields):
        raise BadFrame("the header does not match its checksum")
    if stated != raw_size or stated == 0 or stated % 2:
        raise BadFrame(f"the frame is of a page of {stated} bytes, {raw_size} were expected")
    if high_size == 0 or view.nbytes != HEADER_BYTES + stated // 2 + high_size:
        raise BadFrame(f"{view.nbytes} bytes do not fit the sizes in the header")
    return high_size, checksum


def _stdlib_zstd() -> bool:
    try:
        return util.find_spec("compression.zstd") is not None
    except ModuleNotFoundError:
        return False


def _compress(plane: Buffer) -> bytes:
    if _stdlib_zstd():
        packed: bytes = import_module("compression.zstd").compress(plane, level=LEVEL)
        return packed
    packed = _zstandard().ZstdCompressor(level=LEVEL).compress(plane)
    return packed


def _decompress(packed: memoryview, size: int) -> bytes | bytearray:
    """Return exactly `size` bytes; never allocates more, whatever the frame claims of itself."""
    plane = _decompress_stdlib if _stdlib_zstd() else _decompress_zstandard
    return plane(packed, size)


def _decompress_zstandard(packed: memoryview, size: int) -> bytearray:
    zstandard = _zstandard()
    plane = bytearray(size)
    view, filled = memoryview(plane), 0
    decoder = zstandard.ZstdDecompressor(max_window_size=1 << _MAX_WINDOW_LOG)
    try:
        with decoder.stream_reader(packed) as reader:
            while filled < size:
                count = reader.readinto(view[filled:])
                if not count:
                    raise BadFrame(f"the high plane has {filled} bytes instead of {size}")
                filled += count
            if reader.read(1):
                raise BadFrame(f"the high plane has more than {size} bytes")
    except zstandard.ZstdError as error:
        raise BadFrame(f"the high plane is no zstd frame: {error}") from None
    return plane


def _decompress_stdlib(packed: memoryview, size: int) -> bytes:
    zstd = import_module("compression.zstd")
    options = {zstd.DecompressionParameter.window_log_max: _MAX_WINDOW_LOG}
    decoder = zstd.ZstdDecompressor(options=options)
    try:
        plane: bytes = decoder.decompress(packed, size)
        if not decoder.eof and decoder.decompress(b"", 1):
            raise BadFrame(f"the high plane has more than {size} bytes")
    except zstd.ZstdError as error:
        raise BadFrame(f"the high plane is no zstd frame: {error}") from None
    if len(plane) != size or not decoder.eof:
        raise BadFrame(f"the high plane has {len(plane)} bytes instead of {size}")
    return plane


def _zstandard() -> Any:
    try:
        return import_module("zstandard")
    except ModuleNotFoundError:
        raise ZstdMissing("zstd needs the extra: pip install 'omlx-cache[zstd]'") from None
