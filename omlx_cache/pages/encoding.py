"""Codecs on pages: which tensors a policy encodes, and the page that comes of it."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

import mlx.core as mx

from omlx_cache.adapters.base import PAGED
from omlx_cache.arrays.mlxio import Array, dtype_name, dtype_of, evaluate, on_host
from omlx_cache.codecs import Codec, CodecPolicy, LayerShape
from omlx_cache.codecs.policy import LayerKind
from omlx_cache.pages.cut import Cutter
from omlx_cache.pages.geometry import Source
from omlx_cache.pages.tensors import (
    DENSE,
    FLOATS,
    Tag,
    codec_text,
    page_arrays,
    part_specs,
    tags_of,
)
from omlx_cache_storage.page import Page, PageMeta

DEVICE_BATCH = 16
"""Tensors that a GPU encodes before MLX is asked to evaluate: each time costs it 0.4 ms."""


def codecs_for(meta: PageMeta, policy: CodecPolicy) -> Mapping[str, Codec]:
    """Return the codec of each dense tensor of a page that the policy encodes; cheap, pure.

    Only leaves with plain keys and values are encoded: what is packed already stays as it is.
    """
    kind: LayerKind = (
        "paged" if meta.group == PAGED.name else "state" if meta.held == 0 else "window"
    )
    shapes = tuple(
        (spec.name, spec.dtype, len(spec.shape), spec.shape[-1:]) for spec in meta.tensors
    )
    return _codecs(shapes, kind, policy)


@lru_cache(maxsize=256)
def _codecs(
    shapes: tuple[tuple[str, str, int, tuple[int, ...]], ...], kind: LayerKind, policy: CodecPolicy
) -> Mapping[str, Codec]:
    known = {name: (dtype, ndim, last) for name, dtype, ndim, last in shapes}
    paths = [
        name.removesuffix(".keys")
        for name, (dtype, ndim, _last) in known.items()
        if name.endswith(".keys") and ndim == 4 and dtype in FLOATS
    ]
    paths = sorted((p for p in paths if f"{p}.values" in known), key=_leaf_order)
    plan = policy.plan(
        [
            LayerShape(
                kind,
                known[f"{path}.keys"][2][0],
                known[f"{path}.values"][2][0],
                dtype_of(known[f"{path}.keys"][0]),
            )
            for path in paths
        ]
    )
    found: dict[str, Codec] = {}
    for path, codecs in zip(paths, plan, strict=True):
        for side, codec in (("keys", codecs.keys), ("values", codecs.values)):
            if codec.identity.name != DENSE:
                found[f"{path}.{side}"] = codec
    return MappingProxyType(found)


def _leaf_order(path: str) -> list[int]:
    return [int(part) for part in path.split(".")]


def encoded_nbytes(meta: PageMeta, codecs: Mapping[str, Codec]) -> int:
    """Return the payload bytes that `encode_page` would give; computes nothing."""
    if not codecs:
        return meta.nbytes
    total = 0
    for spec in meta.tensors:
        codec = codecs.get(spec.name)
        parts = [] if codec is None else part_specs(spec, codec)
        total += sum(part.nbytes for part in parts) if codec is not None else spec.nbytes
    return total


def encode_page(page: Page, codecs: Mapping[str, Codec]) -> Page:
    """Return the page with the tensors named in `codecs` encoded; owned and evaluated.

    The same page comes back when there is nothing to encode or a value is out of a codec's range.
    """
    if not codecs:
        return page
    dense = page_arrays(page)
    chosen = {name: codecs[name] for name in dense if name in codecs}
    if not chosen:
        return page
    arrays: dict[str, Array] = {}
    checks: list[Array] = []
    tags: dict[str, Tag] = dict(tags_of(page.meta))
    together = 1 if on_host() else DEVICE_BATCH
    for name, array in dense.items():
        codec = chosen.get(name)
        if codec is None:
            arrays[name] = array
            continue
        parts = codec.encode(array)
        check = codec.encodable(array, parts)
        # A few at a time: an encoder's intermediate arrays are several times its input.
        if len(checks) % together == 0:
            evaluate([*arrays.values(), *parts.values(), check])
        checks.append(check)
        arrays |= {f"{name}.{part}": value for part, value in parts.items()}
        tags[name] = Tag(str(codec.identity), dtype_name(array), array.shape[-1])
    sound = mx.all(mx.stack(checks))
    evaluate([*arrays.values(), sound])
    if not sound.item():
        return page
    cutter = Cutter([Source(arrays, {})])
    cut = cutter.geometry.whole()
    meta = replace(page.meta, codec=codec_text(tags), tensors=cut.tensors)
    return Page(meta, cutter.payloads([cut])[0])
