"""Sound pages of every kind, and what lies in a directory: page files with their headers
and planes, documents."""

import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import xxhash

from kit.storage.signed import raw_header, signed_header, signed_planes, split_header
from kit.units import KIB, MIB
from omlx_cache_storage.cold.disk import FileSystem, StrPath
from omlx_cache_storage.cold.files import encode_document, has_fields
from omlx_cache_storage.cold.page_reader import PageReader, read_header
from omlx_cache_storage.cold.small_files import (
    MAX_DOCUMENT_BYTES,
    MOST_BYTES,
    parse_budget,
    parse_reuse,
    read_document,
)
from omlx_cache_storage.documents import FORMAT, label, salt, versions
from omlx_cache_storage.errors import PageError
from omlx_cache_storage.eviction.keep import BUCKETS
from omlx_cache_storage.format.header import encode_header, payload_checksum
from omlx_cache_storage.format.names import StoredPage, name_of
from omlx_cache_storage.format.packing import (
    HEADER_BYTES,
    unwrapped,
    wrap,
    zstd,
)
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Buffer, Page, PageMeta, TensorSpec

from .mutate import NUMBERS, any_value, nested, spoil_bytes, spoil_value
from .run import Target, refused

TOKENS = 16
AFFINE = "affine/1(bits=4,group=64)"


def meta(
    group: str, tensors: Sequence[TensorSpec], *, codec: str = "dense", extra: str = "", **more: Any
) -> PageMeta:
    """Describe the first page of a sequence."""
    key = BlockKey(bytes(range(32)))
    parent = BlockKey(bytes(32))
    fields = {"position": TOKENS, "held": TOKENS, "tail": False, **more}
    return PageMeta(parent, key, parent, group, codec=codec, tensors=tuple(tensors), extra=extra,
                    **fields)  # fmt: skip


def plain() -> PageMeta:
    shape = (1, 2, TOKENS, 64)
    return meta("paged", [TensorSpec(f"0.{n}", "BF16", shape) for n in ("keys", "values")])


def snapshot() -> PageMeta:
    shapes = ((1, 3, 8), (1, 2, 4, 4))
    tensors = [TensorSpec(f"0.{i}", "F32", shape) for i, shape in enumerate(shapes)]
    return meta("state", tensors, held=0)


def window() -> PageMeta:
    shape = (1, 2, TOKENS, 64)
    tensors = [TensorSpec(f"0.{n}", "F16", shape) for n in ("keys", "values")]
    return meta("window12k4", tensors, extra='{"0":{"index":8}}')


def tagged(codec: str, parts: Sequence[tuple[str, str, tuple[int, ...]]]) -> PageMeta:
    """Describe a page whose keys and values went through a codec."""
    tensors = [TensorSpec(f"0.{side}.{part}", dtype, shape)
               for side in ("keys", "values") for part, dtype, shape in parts]  # fmt: skip
    tags = {f"0.{side}": [codec, "BF16", 64] for side in ("keys", "values")}
    return meta("paged", tensors, codec=json.dumps(tags, sort_keys=True, separators=(",", ":")))


def affine() -> PageMeta:
    groups = (1, 2, TOKENS, 1)
    return tagged(AFFINE, [("packed", "U32", (1, 2, TOKENS, 8)), ("scales", "BF16", groups),
                           ("biases", "BF16", groups)])  # fmt: skip


def payload(of: PageMeta) -> bytes:
    """Return bytes of a page that a packing shrinks."""
    values = np.random.default_rng(of.nbytes).normal(size=of.nbytes // 2 + 1)
    return values.astype(np.float16).tobytes()[: of.nbytes]


def file_of(page: Page) -> bytes:
    """Return the file of a page."""
    data = bytes(memoryview(page.payload))
    return encode_header(page.meta, payload_checksum(data)) + data


def files() -> list[bytes]:
    """Return files of all kinds of pages, one of them wrapped."""
    kinds = [plain(), snapshot(), window(), affine()]
    found = [Page(kind, payload(kind)) for kind in kinds]
    return [file_of(page) for page in (*found, wrap(found[2]))]


def vary_header(rng: Random, sample: bytes) -> bytes:
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


_SIZE = struct.Struct("<8xQQQ")
_BOMB_BYTES = 64 * MIB


def vary_planes(rng: Random, sample: bytes) -> bytes:
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


class OneFile(FileSystem):
    """A disk that has one_page_file file, whatever it is asked for."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def open(self, path: StrPath, *, writing: bool = False) -> int:
        return 3

    def close(self, fd: int) -> None:
        pass

    def status(self, fd: int) -> os.stat_result:
        return os.stat_result([0] * 6 + [len(self._data)] + [0] * 3)

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


def one_page_file(data: bytes) -> bool:
    fs, path = OneFile(data), Path("page")
    try:
        stored = read_header(path, fs)
        meta = unwrapped(stored.meta)
        reader = PageReader(fs, fs.open(path), path, StoredPage(meta.namespace, name_of(meta), 0))
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


def vary_page_file(rng: Random, sample: bytes) -> bytes:
    """Return a file whose parts are spoilt, most often under right checksums and sizes."""
    start = int.from_bytes(sample[:8], "little") + 8
    payload = sample[start:]
    kind = rng.random()
    if kind < 0.3:
        return vary_header(rng, sample[:start]) + payload
    if kind < 0.4:
        return sample[:start] + spoil_bytes(rng, payload)
    fields, tensors = split_header(sample)
    if "planes" in tensors and kind < 0.9:
        payload = vary_planes(rng, payload)
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


PAGE_FILE = Target("page-file", files, vary_page_file, one_page_file, constant=80 * MIB, factor=4)
"""The constant is the header's; the frame, its high plane and the page stand side by side."""


SAMPLE = {
    "block_size": 256, "codec": "dense", "extra": {"quantized_kv_start": "5000"},
    "format": 1, "label": "tiny", "layout": '[["0","KVCache",{}]]', "model": "ab" * 32,
    "salt": "text:" + "cd" * 32, "software": {"mlx": "0.30.1", "mlx-lm": "0.29.0"},
}  # fmt: skip

AGES = {"version": 1, "uses": [2.5] * BUCKETS, "seen": 3_000, "patience_seconds": 25.4}
REUSE = {"version": 1, "memory": AGES, "disk": AGES}
BUDGET = {
    "version": 1, "bytes": 5 << 30, "set_by": "store",
    "shares": {"salt": {"*": {"fraction": 0.25}}, "model": {"tiny": {"bytes": 1 << 30}}},
}  # fmt: skip


def one_document(data: bytes) -> bool:
    document = read_document(Path("namespace.json"), OneFile(data))
    assert isinstance(document, dict)
    assert isinstance(label(document), str)
    assert len(salt(document)) <= 256
    assert versions(document) == {} or FORMAT in versions(document)
    for learned in parse_reuse(document):
        assert learned is None or 0 <= learned.patience_seconds < 1e7
    budget = parse_budget(document)
    assert budget is None or 0 <= budget.nbytes <= MOST_BYTES
    assert budget is None or isinstance(budget.shares, dict)
    has_fields(document, {"model": "ab" * 32, "salt": None})
    if not document or len(data) > 2 * KIB:
        # Larger ones are read alike, and indenting what is nested takes its square.
        return bool(document)
    raw = encode_document(document)
    assert len(raw) <= MAX_DOCUMENT_BYTES
    again = read_document(Path("namespace.json"), OneFile(raw))
    assert has_fields(again, {name: document[name] for name in again})
    return True


def vary_document(rng: Random, sample: bytes) -> bytes:
    kind = rng.random()
    if kind < 0.1:
        return rng.choice((b"[", b'{"a":', b"[{", b"9", b"[],")) * rng.choice((1000, 100_000))
    if kind < 0.2:
        text = json.dumps({**SAMPLE, "extra": nested(rng.choice((20, 900)), dict)})
        return text.encode()
    value = spoil_value(rng, json.loads(sample))
    encoding = rng.choice(("utf-8", "utf-8", "utf-16", "utf-32", "utf-8-sig"))
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    return spoil_bytes(rng, text.encode(encoding, "surrogatepass")) if kind > 0.9 else (
        text.encode(encoding, "surrogatepass"))  # fmt: skip


def document_samples() -> list[bytes]:
    return [
        encode_document(SAMPLE),
        encode_document({}),
        encode_document(REUSE),
        encode_document(BUDGET),
    ]


DOCUMENT = Target("document", document_samples, vary_document, one_document, constant=80 * MIB)
