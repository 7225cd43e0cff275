"""Frames of byte planes: lying lengths, zstd bombs, and what decodes has one meaning."""

import struct
from random import Random

import numpy as np
import xxhash

from kit.storage.signed import signed_planes
from omlx_cache_storage.errors import PageError
from omlx_cache_storage.format.planes import (
    HEADER_BYTES,
    pack,
    unpack,
    zstd,
)

from .mutate import NUMBERS, spoil_bytes
from .target import MIB, Target, refused

_SIZE = struct.Struct("<8xQQQ")
_BOMB_BYTES = 64 * MIB


def one(data: bytes) -> bool:
    """The caller knows a page's size, and believes no more than twice the frame."""
    size = _SIZE.unpack_from(data)[0] if len(data) >= HEADER_BYTES else 1024
    try:
        page = bytes(unpack(data, min(size, 2 * len(data))))
    except PageError as error:
        return refused(error)
    again = pack(page)
    assert again is None or unpack(again, len(page)) == page
    return True


def vary(rng: Random, sample: bytes) -> bytes:
    """Return a frame with a right header checksum around wrong sizes, or another zstd frame."""
    if len(sample) < HEADER_BYTES:
        return spoil_bytes(rng, sample)
    size, high_size, checksum = _SIZE.unpack_from(sample)
    half = size // 2
    low, high = sample[HEADER_BYTES : HEADER_BYTES + half], sample[HEADER_BYTES + half :]
    kind = rng.randrange(6)
    if kind == 0:
        size = rng.choice((rng.choice(NUMBERS) % 2**64, size + rng.choice((1, 2, -2)))) % 2**64
    elif kind == 1:
        high_size = (high_size + rng.choice((1, -1, 2**32, -high_size))) % 2**64
    elif kind == 2:
        high = rng.choice(_others())
    elif kind == 3:
        high = high + rng.choice((high, rng.randbytes(4), b"\x50\x2a\x4d\x18\4\0\0\0abcd"))
    else:
        high = spoil_bytes(rng, high)
    if kind >= 2:
        high_size = len(high)
    if rng.random() < 0.3:
        checksum = xxhash.xxh3_64_intdigest(bytes(size if size < MIB else 0))
    return signed_planes(size, high_size, checksum, low + high)


def _others() -> list[bytes]:
    """Frames of zstd that are no high plane of ours: bombs, lying sizes, giant windows."""
    if not _FRAMES:
        bomb = bytes(zstd().compress(bytes(_BOMB_BYTES)))
        window = b"\x28\xb5\x2f\xfd\x00\xf8\x01\0\0"
        stated = b"\x28\xb5\x2f\xfd\xe0" + (2**62).to_bytes(8, "little") + b"\x01\0\0"
        run_length = b"\x28\xb5\x2f\xfd\xa0" + (2**31).to_bytes(4, "little")
        _FRAMES.extend([bomb, window, stated, run_length + b"\x03\x00\x10\0" * 64, b"", bomb[:10]])
    return _FRAMES


_FRAMES: list[bytes] = []


def samples() -> list[bytes]:
    made = []
    for count in (64, 4096):
        values = np.random.default_rng(count).normal(size=count).astype(np.float16)
        made.append(pack(values.tobytes()))
    return [frame for frame in made if frame is not None]


# zstd's history, of 8 MiB at most, is its own memory and not seen by Python's count.
TARGET = Target("planes", samples, vary, one, constant=1 * MIB, factor=8)
