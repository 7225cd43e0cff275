"""Headers that nobody of ours wrote: refused at once, without taking memory for them."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from kit.storage.signed import raw_header, signed_header, split_header
from omlx_cache_storage.errors import CorruptPage
from omlx_cache_storage.format.header import (
    ALIGNMENT,
    MAX_HEADER_BYTES,
    decode_header,
    encode_header,
    header_length,
)
from omlx_cache_storage.format.packing import unwrapped
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageMeta, TensorSpec

META = PageMeta(
    namespace=BlockKey(bytes(32)),
    key=BlockKey(bytes(32)),
    parent=BlockKey(bytes(32)),
    group="paged",
    position=16,
    held=16,
    tail=False,
    codec="dense",
    tensors=(TensorSpec("a", "U8", (4,)), TensorSpec("b", "F16", (2,))),
)


def _raw(text: str) -> bytes:
    return raw_header(text.encode())


def _document() -> tuple[dict[str, Any], dict[str, Any]]:
    return split_header(encode_header(META, "xxh3-128:00"))


TensorEdit = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    "edit",
    [
        lambda t: t["b"].update(data_offsets=[5, 9]),
        lambda t: t["b"].update(data_offsets=[3, 7]),
        lambda t: t["b"].update(data_offsets=[4, 9]),
        lambda t: t["b"].update(data_offsets=[8, 4]),
        lambda t: t["b"].update(data_offsets=[4.0, 8.0]),
        lambda t: t["b"].update(data_offsets=None),
        lambda t: t["b"].update(shape=[-2]),
        lambda t: t["b"].update(shape=[-1, -2]),
        lambda t: t["b"].update(shape=[2.0]),
        lambda t: t["b"].update(shape=[True, 2]),
        lambda t: t["b"].update(shape="2"),
        lambda t: t["b"].update(shape=[1] * 9 + [2]),
        lambda t: t["b"].update(shape=[2**50, 0]),
        lambda t: t["b"].update(shape=[10**400]),
        lambda t: t["b"].update(shape=[9] * 100_000),
        lambda t: t["b"].update(dtype="F17"),
        lambda t: t["b"].update(dtype=["F16"]),
        lambda t: t["b"].update(more=1),
        lambda t: t["b"].pop("dtype"),
        lambda t: t.update(b=[]),
        lambda t: t.update(b=None),
        lambda t: t.update(a=t.pop("a")),
    ],
)
def test_a_signed_header_with_senseless_tensors_is_refused(edit: TensorEdit) -> None:
    fields, tensors = _document()
    edit(tensors)
    began = time.perf_counter()
    with pytest.raises(CorruptPage):
        decode_header(signed_header(fields, tensors))
    assert time.perf_counter() - began < 30


@pytest.mark.parametrize(
    "edit",
    [
        {"position": " 16"},
        {"position": "1_6"},
        {"position": "\u0661\u0666"},
        {"position": 16},
        {"position": "x"},
        {"position": "9" * 5000},
        {"tokens": None},
        {"key": "AB" * 32},
        {"key": "ab cd" * 16},
        {"key": 7},
        {"group": 7},
        {"tail": "yes"},
        {"codec": None},
        {"extra": ["x"]},
        {"checksum": 1},
        {"unknown": "1"},
        {"format": "01"},
    ],
)
def test_a_signed_header_with_senseless_fields_is_refused(edit: dict[str, Any]) -> None:
    fields, tensors = _document()
    with pytest.raises(CorruptPage):
        decode_header(signed_header({**fields, **edit}, tensors))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "7",
        '"text"',
        "{}",
        "{",
        '{"__metadata__":null}',
        '{"__metadata__":{}}',
        '{"__metadata__":{"header_checksum":1}}',
        "[" * 400_000,
        '{"a":' * 150_000,
        "\ud83d",
        '{"__metadata__":{"format":"1"},"a":NaN}',
        "9" * 100_000,
    ],
)
def test_text_that_is_no_header_is_refused_quickly(text: str) -> None:
    raw = _raw(text.encode("utf-8", "surrogatepass").decode("latin-1"))
    began = time.perf_counter()
    with pytest.raises(CorruptPage):
        decode_header(raw)
    assert time.perf_counter() - began < 30


def test_duplicate_keys_are_refused() -> None:
    text = encode_header(META, "xxh3-128:00")[8:].decode().rstrip()
    entry = json.dumps(json.loads(text)["b"], separators=(",", ":"))
    for doubled in (
        f'{text[:-1]},"b":{entry}}}',
        text.replace('"b":', f'"b":{entry},"b":'),
        text.replace('"position":"16"', '"position":"99","position":"16"'),
    ):
        assert doubled != text
        json.loads(doubled)
        with pytest.raises(CorruptPage):
            decode_header(_raw(doubled))


@pytest.mark.parametrize("total", [0, 8, ALIGNMENT + 8, MAX_HEADER_BYTES + ALIGNMENT, 2**40, 2**64])
def test_a_length_that_no_header_has_is_refused_before_reading(total: int) -> None:
    prefix = ((total - 8) % 2**64).to_bytes(8, "little")
    with pytest.raises(CorruptPage, match="multiple of 16 KiB"):
        header_length(prefix)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[[1, 2]]",
        '[["a", "F16", [-1]]]',
        '[["a", "F16", [1.5]]]',
        '[["a", "F16", 3]]',
        '[["a", "F19", [3]]]',
        '[[7, "F16", [3]]]',
        "[" * 100_000,
        '[["a", "F16", [' + "9," * 50_000 + "9]]]",
    ],
)
def test_a_wrapped_page_with_senseless_inner_tensors_is_corrupt(text: str) -> None:
    meta = PageMeta(
        META.namespace, META.key, META.parent, "paged", 16, 16, False, f"planes/1 {text}", ()
    )
    with pytest.raises(CorruptPage):
        unwrapped(meta)


@pytest.mark.parametrize("count", [1, 100, 10_000, 2**30, 2**40])
def test_a_wrapped_page_cannot_claim_more_than_its_frame_may_hold(count: int) -> None:
    frame = TensorSpec("planes", "U8", (1000,))
    text = f'planes/1 [["a","F16",[{count}]]]'
    meta = PageMeta(META.namespace, META.key, META.parent, "paged", 16, 16, False, text, (frame,))
    with pytest.raises(CorruptPage, match="cannot hold"):
        unwrapped(meta)
