"""Sound pages of every kind, which the targets begin with."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from omlx_cache_storage.format.header import encode_header, payload_checksum
from omlx_cache_storage.format.wrapping import wrap
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Page, PageMeta, TensorSpec

TOKENS = 16
AFFINE = "affine/1(bits=4,group=64)"
TURBO = (
    "turbo-mse/1(bits=4,dim=64,norm=corrected,rotation=hadamard,seed=0)"
    "#codebook=a27ff8a0a1a3f1b0,signs=4d7a4b8ae8b2a5a9"
)


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
