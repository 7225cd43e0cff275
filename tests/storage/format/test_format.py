"""The page file: what is written is read back, other readers agree, and no damage is accepted."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from kit.examples import examples
from omlx_cache_storage.cold.disk import DISK
from omlx_cache_storage.cold.page_reader import PageReader, read_header
from omlx_cache_storage.errors import CorruptPage
from omlx_cache_storage.format.header import (
    ALIGNMENT,
    CHECKSUM,
    decode_header,
    encode_header,
    header_length,
    payload_checksum,
    payload_digest,
)
from omlx_cache_storage.format.names import StoredPage, name_of
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import ITEM_BYTES, PageMeta, TensorSpec

KEYS = st.binary(min_size=32, max_size=32).map(BlockKey)
NAMES = st.text(min_size=1, max_size=12).filter(lambda name: name != "__metadata__")
SPECS = st.builds(
    TensorSpec,
    NAMES,
    st.sampled_from(sorted(ITEM_BYTES)),
    st.lists(st.integers(0, 4), max_size=4).map(tuple),
)
METAS = st.builds(
    PageMeta,
    namespace=KEYS,
    key=KEYS | st.binary(min_size=16, max_size=16).map(BlockKey),
    parent=KEYS,
    group=st.sampled_from(["paged", "window128keep4", "state"]),
    position=st.integers(0, 10**12),
    held=st.integers(0, 4096),
    tail=st.booleans(),
    codec=st.text(max_size=20),
    tensors=st.lists(SPECS, max_size=5, unique_by=lambda spec: spec.name).map(tuple),
    extra=st.text(max_size=20),
)


def _meta(*tensors: TensorSpec, **fields: Any) -> PageMeta:
    known = PageMeta(
        namespace=BlockKey(bytes(32)),
        key=BlockKey(bytes(range(32))),
        parent=BlockKey(bytes(range(1, 33))),
        group="paged",
        position=256,
        held=256,
        tail=False,
        codec="dense",
        tensors=tensors,
    )
    return replace(known, **fields)


def _file(meta: PageMeta, payload: bytes) -> bytes:
    return encode_header(meta, payload_checksum(payload)) + payload


def _read(path: Path, said: PageMeta) -> tuple[PageMeta, bytes]:
    """Return what the tier's reader makes of the file of a page; raises CorruptPage."""
    with DISK.reading(path) as fd:
        reader = PageReader(DISK, fd, path, StoredPage(said.namespace, name_of(said), 0))
        payload = bytearray(reader.meta.nbytes)
        reader.read_into([payload])
        return reader.meta, bytes(payload)


@given(METAS, st.text(max_size=40))
def test_a_header_is_read_back_as_it_was(meta: PageMeta, checksum: str) -> None:
    raw = encode_header(meta, checksum)
    header = decode_header(raw)
    assert (header.meta, header.checksum, header.data_offset) == (meta, checksum, len(raw))
    assert len(raw) % ALIGNMENT == 0
    assert header_length(raw[:8]) == len(raw)


@settings(max_examples=examples(40))
@given(METAS, st.randoms())
def test_a_file_is_read_back_as_it_was(meta: PageMeta, random: Any) -> None:
    payload = random.randbytes(meta.nbytes)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "page"
        path.write_bytes(_file(meta, payload))
        assert _read(path, meta) == (meta, payload)


def test_the_checksum_is_the_same_for_any_cut_of_the_payload() -> None:
    payload = bytes(range(256)) * 5
    whole, digest = payload_checksum(payload), payload_digest()
    for piece in (payload[:1], payload[1:700], b"", payload[700:]):
        digest.update(piece)
    assert CHECKSUM + digest.hexdigest() == whole
    assert payload_checksum(mx.array(list(payload), dtype=mx.uint8)) == whole
    assert payload_checksum(payload[:-1]) != whole


def test_safetensors_and_mlx_see_the_same_tensors(tmp_path: Path) -> None:
    arrays = {
        "0.keys": np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4),
        "0.values": np.arange(6, dtype=np.float16).reshape(1, 1, 3, 2),
        "1.0.ids": np.arange(-3, 3, dtype=np.int64),
        "1.empty": np.zeros((1, 2, 3, 0), dtype=np.float16),
        "1.flag": np.array([True, False, True, True]),
        "2.scalar": np.array(7, dtype=np.uint32),
    }
    codes = {"float32": "F32", "float16": "F16", "int64": "I64", "bool": "BOOL", "uint32": "U32"}
    order = ["1.0.ids", "0.keys", "2.scalar", "0.values", "1.empty", "1.flag"]
    specs = [TensorSpec(n, codes[str(arrays[n].dtype)], arrays[n].shape) for n in order]
    payload = b"".join(arrays[name].tobytes() for name in order)
    path = tmp_path / "page.safetensors"
    path.write_bytes(_file(_meta(*specs), payload))

    with safe_open(path, framework="numpy") as opened:
        assert opened.metadata()["format"] == "1"
        assert set(opened.keys()) == set(arrays)
        for name, array in arrays.items():
            found = opened.get_tensor(name)
            assert (found.dtype, found.shape) == (array.dtype, array.shape)
            assert np.array_equal(found, array)
    loaded = mx.load(str(path))
    for name, array in arrays.items():
        if array.size:
            assert np.array_equal(np.array(loaded[name]), array), name
    assert loaded["1.empty"].shape == (1, 2, 3, 0)
    assert header_length(path.read_bytes()) % ALIGNMENT == 0


@pytest.mark.parametrize("names", [("a", "a"), ("__metadata__",)])
def test_tensor_names_that_a_file_cannot_have_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="names must differ"):
        encode_header(_meta(*[TensorSpec(name, "U8", (1,)) for name in names]), "x")


@pytest.fixture(scope="module")
def small() -> tuple[PageMeta, bytes, bytes]:
    """A file of two tensors: what it says, its payload and its bytes."""
    meta = _meta(
        TensorSpec("0.keys", "F16", (1, 1, 3, 4)),
        TensorSpec("0.values", "U8", (1, 1, 3, 2)),
        extra='{"0": 3}',
    )
    payload = bytes(range(meta.nbytes))
    return meta, payload, _file(meta, payload)


def test_every_flipped_bit_of_the_header_is_refused(small: tuple[PageMeta, bytes, bytes]) -> None:
    _said, _payload, raw = small
    header = bytearray(raw[: header_length(raw)])
    text = len(header.rstrip())
    for index in [*range(text + 8), len(header) - 1]:
        for bit in range(8):
            header[index] ^= 1 << bit
            with pytest.raises(CorruptPage):
                decode_header(bytes(header))
            header[index] ^= 1 << bit
    decode_header(bytes(header))


def test_every_flipped_bit_of_the_payload_is_refused(
    small: tuple[PageMeta, bytes, bytes], tmp_path: Path
) -> None:
    meta, payload, raw = small
    path = tmp_path / "page"
    start = len(raw) - len(payload)
    for index in range(start, len(raw)):
        for bit in range(8):
            damaged = bytearray(raw)
            damaged[index] ^= 1 << bit
            path.write_bytes(damaged)
            with pytest.raises(CorruptPage):
                _read(path, meta)
    path.write_bytes(raw)
    assert _read(path, meta) == (meta, payload)


def test_a_file_cut_or_grown_at_any_length_is_refused(
    small: tuple[PageMeta, bytes, bytes], tmp_path: Path
) -> None:
    meta, payload, raw = small
    start = len(raw) - len(payload)
    path = tmp_path / "page"
    lengths = [*range(0, 700), *range(700, start, 997), *range(start - 2, len(raw))]
    for length in lengths:
        path.write_bytes(raw[:length])
        with pytest.raises(CorruptPage):
            _read(path, meta)
    for more in (1, ALIGNMENT):
        path.write_bytes(raw + bytes(more))
        with pytest.raises(CorruptPage):
            _read(path, meta)


def test_a_payload_of_spaces_cannot_stretch_the_header(tmp_path: Path) -> None:
    """With the length's bit flipped the JSON is followed by more spaces, and still parses."""
    meta = _meta(TensorSpec("0.keys", "U8", (ALIGNMENT,)))
    raw = bytearray(_file(meta, b" " * ALIGNMENT))
    assert len(raw) == 2 * ALIGNMENT
    raw[:8] = (2 * ALIGNMENT - 8).to_bytes(8, "little")
    with pytest.raises(CorruptPage):
        decode_header(bytes(raw))


def test_read_header_of_a_path_reads_no_payload(
    small: tuple[PageMeta, bytes, bytes], tmp_path: Path
) -> None:
    meta, _payload, raw = small
    path = tmp_path / "page"
    path.write_bytes(raw[: header_length(raw)])
    assert read_header(path).meta == meta
    assert json.loads(raw[8 : header_length(raw)])["0.keys"]["data_offsets"] == [0, 24]
