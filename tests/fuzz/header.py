"""The header of a page file: what decodes is what the format writes, to the byte."""

from random import Random

from kit.storage.signed import raw_header, signed_header, split_header
from omlx_cache_storage.errors import PageError
from omlx_cache_storage.format.header import decode_header, encode_header
from omlx_cache_storage.format.wrapping import unwrapped

from . import pages
from .mutate import any_value, spoil_bytes, spoil_value
from .target import MIB, Target, refused


def one(data: bytes) -> bool:
    try:
        header = decode_header(data)
    except PageError as error:
        return refused(error)
    assert encode_header(header.meta, header.checksum) == data[: header.data_offset]
    try:
        inner = unwrapped(header.meta)
    except PageError as error:
        return refused(error)
    # Whoever reads a page makes room for what it says that it holds.
    assert inner.nbytes <= 2 * header.meta.nbytes
    return True


def vary(rng: Random, sample: bytes) -> bytes:
    """Return a header with other entries, most often under a right checksum."""
    length = int.from_bytes(sample[:8], "little")
    fields, tensors = split_header(sample)
    kind = rng.random()
    if kind < 0.05:
        return raw_header(spoil_bytes(rng, sample[8 : 8 + length].rstrip()))
    if kind < 0.45:
        fields = spoil_value(rng, fields)
    elif kind < 0.85:
        tensors = spoil_value(rng, tensors)
    elif kind < 0.9:
        fields["format"] = rng.choice(("2", "02", "9" * 5000, "0", ""))
        fields["more"] = any_value(rng)
    elif kind < 0.95:
        shape = [rng.choice((0, 1, 2, 2**20, 2**40)) for _ in range(rng.randrange(9))]
        entry = {"dtype": "U8", "shape": shape, "data_offsets": [0, 0]}
        tensors = {str(number): entry for number in range(rng.choice((1, 100)))}
    else:
        tensors = dict(reversed(tensors.items()))
    try:
        return signed_header(fields, tensors)
    except (ValueError, TypeError, AttributeError):
        # Some of it can be written in no JSON, or is no map any more.
        return raw_header(repr((fields, tensors)).encode("utf-8", "replace"))


def samples() -> list[bytes]:
    return [raw[: int.from_bytes(raw[:8], "little") + 8] for raw in pages.files()]


# A mebibyte of JSON is at most 64 of Python's objects.
TARGET = Target("header", samples, vary, one, constant=80 * MIB)
