"""A whole page file, as a restore reads it: the header, the sizes, the payload, the packing."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

from kit.storage.signed import signed_header, split_header
from omlx_cache_storage.cold.disk import FileSystem, StrPath
from omlx_cache_storage.cold.reader import open_page, read_header
from omlx_cache_storage.errors import PageError
from omlx_cache_storage.format.header import encode_header, payload_checksum
from omlx_cache_storage.format.names import name_of
from omlx_cache_storage.format.wrapping import unwrapped, wrap
from omlx_cache_storage.page import Buffer, Page

from . import header, pages, planes
from .mutate import spoil_bytes
from .target import MIB, Target, refused


class OneFile(FileSystem):
    """A disk that has one file, whatever it is asked for."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def open(self, path: StrPath) -> int:
        return 3

    def close(self, fd: int) -> None:
        pass

    def size(self, fd: int) -> int:
        return len(self._data)

    def read(self, fd: int, length: int, offset: int) -> bytes:
        return self._data[offset : offset + length]

    def read_into(self, fd: int, offset: int, buffers: Sequence[Buffer]) -> int:
        came = 0
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            piece = self._data[offset + came : offset + came + view.nbytes]
            view[: len(piece)] = piece
            came += len(piece)
        return came


def one(data: bytes) -> bool:
    fs, path = OneFile(data), Path("page")
    try:
        stored = read_header(path, fs)
        meta = unwrapped(stored.meta)
        with open_page(fs, path, meta.namespace, name_of(meta)) as reader:
            assert reader.meta == meta
            assert meta.nbytes <= 2 * len(data), "room for more than a file can hold"
            payload = bytearray(meta.nbytes)
            reader.read_into([payload])
    except PageError as error:
        return refused(error)
    page = Page(meta, bytes(payload))
    if stored.meta == meta:
        assert data == encode_header(meta, payload_checksum(payload)) + payload
    elif meta.nbytes:
        again = wrap(page)
        assert unwrapped(again.meta) == meta
    return True


def vary(rng: Random, sample: bytes) -> bytes:
    """Return a file whose parts are spoilt, most often under right checksums and sizes."""
    start = int.from_bytes(sample[:8], "little") + 8
    payload = sample[start:]
    kind = rng.random()
    if kind < 0.3:
        return header.vary(rng, sample[:start]) + payload
    if kind < 0.4:
        return sample[:start] + spoil_bytes(rng, payload)
    fields, tensors = split_header(sample)
    if "planes" in tensors and kind < 0.9:
        payload = planes.vary(rng, payload)
    else:
        payload = spoil_bytes(rng, payload)
    fields["checksum"] = payload_checksum(payload)
    last = next(reversed(tensors.values()))
    first = last["data_offsets"][0]
    if len(payload) >= first and rng.random() < 0.8:
        last["data_offsets"][1] = len(payload)
        last.update(dtype="U8", shape=[len(payload) - first])
    if "planes" in tensors and rng.random() < 0.2:
        count = rng.choice((0, 1, 2**20, 2**40, len(payload) // 2))
        fields["codec"] = f'planes/1 [["0.keys","F16",[{count}]]]'
    return signed_header(fields, tensors) + payload


TARGET = Target("page-file", pages.files, vary, one, constant=80 * MIB, factor=4)
"""The constant is the header's; the frame, its high plane and the page stand side by side."""
