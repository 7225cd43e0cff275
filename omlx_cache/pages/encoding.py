"""Codecs on pages: dense tensors become named parts, and parts become what a leaf wants.

A page says for every encoded tensor which codec made it, from which dtype and how many channels
(`PageMeta.codec`, a JSON text; "dense" when nothing is encoded). Nothing is ever inferred from
shapes. What cannot be joined exactly raises ForeignPage: a miss.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import mlx.core as mx

from omlx_cache.adapters.base import PAGED
from omlx_cache.arrays.mlxio import Array, dtype_name, dtype_of, evaluate, on_host
from omlx_cache.codecs import Codec, CodecPolicy, LayerShape, codec_for, parse_identity
from omlx_cache.codecs.policy import LayerKind
from omlx_cache.pages.cut import Cutter, Source, cut_whole
from omlx_cache.pages.layout import Leaf
from omlx_cache_storage.errors import ForeignPage
from omlx_cache_storage.page import Page, PageMeta, TensorSpec

DENSE = "dense"
DEVICE_BATCH = 16
"""Tensors that a GPU encodes before MLX is asked to evaluate: each time costs it 0.4 ms."""
_SIDES = ("keys", "values")
_FLOATS = ("F16", "BF16", "F32")


class Tag(NamedTuple):
    """How one tensor was encoded, and what it was before."""

    codec: str
    dtype: str
    dim: int


Tags = Mapping[str, Tag]


def tags_of(meta: PageMeta) -> dict[str, Tag]:
    """Return a page's tags by dense tensor name; raises ForeignPage for a text it cannot read."""
    if meta.codec == DENSE:
        return {}
    try:
        return {name: Tag(*fields) for name, fields in json.loads(meta.codec).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ForeignPage(f"the codec {meta.codec[:80]!r} cannot be read") from error


def codec_text(tags: Tags) -> str:
    """Return what `tags_of` reads back."""
    return json.dumps(tags, sort_keys=True, separators=(",", ":")) if tags else DENSE


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
        if name.endswith(".keys") and ndim == 4 and dtype in _FLOATS
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


def live_tags(leaves: Sequence[Leaf]) -> dict[str, Tag]:
    """Return the tags of leaves whose live arrays are packed already."""
    tags = {}
    for leaf in leaves:
        packing = leaf.adapter.packing(leaf.cache)
        if packing is not None:
            for side, form in packing.forms.items():
                identity = str(packing.codec(side, form.dim).identity)
                tags[f"{leaf.path}.{side}"] = Tag(identity, form.dtype, form.dim)
    return tags


def encoded_nbytes(meta: PageMeta, codecs: Mapping[str, Codec]) -> int:
    """Return the payload bytes that `encode_page` would give; computes nothing."""
    total = 0
    for spec in meta.tensors:
        codec = codecs.get(spec.name)
        parts = [] if codec is None else part_specs(spec, codec)
        total += sum(part.nbytes for part in parts) if codec is not None else spec.nbytes
    return total


def part_specs(spec: TensorSpec, codec: Codec) -> list[TensorSpec]:
    """Return the parts that a codec makes of a dense tensor."""
    parts = codec.parts_spec(spec.shape, dtype_of(spec.dtype))
    return [
        TensorSpec(f"{spec.name}.{name}", _name_of(part.dtype), tuple(part.shape))
        for name, part in parts.items()
    ]


def _name_of(dtype: mx.Dtype) -> str:
    return dtype_name(mx.zeros((), dtype=dtype))


def encode_page(page: Page, codecs: Mapping[str, Codec]) -> Page:
    """Return the page with the tensors named in `codecs` encoded; owned and evaluated.

    The same page comes back when there is nothing to encode or a value is out of a codec's range.
    """
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
    source = Source(arrays, {})
    cuts = cut_whole(source)
    m = page.meta
    meta = PageMeta(
        m.namespace, m.key, m.parent, m.group, m.position, m.held, m.tail,
        codec_text(tags), tuple(cut.spec for cut in cuts), m.extra,
    )  # fmt: skip
    return Page(meta, Cutter([source]).payload(cuts))


def page_arrays(page: Page) -> dict[str, Array]:
    """Return lazy views of a page's tensors; they pin its payload."""
    arrays: dict[str, Array] = {}
    offset = 0
    for spec in page.meta.tensors:
        end = offset + spec.nbytes
        if spec.nbytes == 0:
            arrays[spec.name] = mx.zeros(spec.shape, dtype=dtype_of(spec.dtype))
        else:
            arrays[spec.name] = (
                page.payload[offset:end].view(dtype_of(spec.dtype)).reshape(spec.shape)
            )
        offset = end
    return arrays


def wanted_specs(leaf: Leaf, meta: PageMeta) -> dict[str, TensorSpec]:
    """Return, by field, the tensors that a leaf wants of a page, in the page's token count.

    Raises ForeignPage when the page holds another packing than the leaf can take.
    """
    prefix = f"{leaf.path}."
    own = [spec for spec in meta.tensors if spec.name.startswith(prefix)]
    tags = {name: tag for name, tag in tags_of(meta).items() if name.startswith(prefix)}
    codecs = packing_codecs(leaf, meta)
    if leaf.adapter.packing(leaf.cache) is None:
        specs = [_dense_spec(name, tag, own) for name, tag in tags.items()]
        specs += [spec for spec in own if not _is_part(spec.name, tags)]
    else:
        specs = []
        for name, codec in codecs.items():
            specs += _packed_specs(name, codec, own, tags)
    return {spec.name.removeprefix(prefix): spec for spec in specs}


def packing_codecs(leaf: Leaf, meta: PageMeta) -> dict[str, Codec]:
    """Return the codecs in which a leaf keeps a page's tensors, by dense name; {} if plain."""
    packing = leaf.adapter.packing(leaf.cache)
    if packing is None:
        return {}
    tags = tags_of(meta)
    dims = {spec.name: spec.shape[-1] for spec in meta.tensors}
    dims |= {name: tag.dim for name, tag in tags.items()}
    sides = {side: f"{leaf.path}.{side}" for side in _SIDES}
    try:
        return {
            name: packing.codec(side, dims[name]) for side, name in sides.items() if name in dims
        }
    except ValueError as error:
        raise ForeignPage(str(error)) from error


def _is_part(name: str, tags: Tags) -> bool:
    return name.rpartition(".")[0] in tags


def _dense_spec(name: str, tag: Tag, own: Sequence[TensorSpec]) -> TensorSpec:
    part = next((spec for spec in own if spec.name.startswith(f"{name}.")), None)
    if part is None or tag.dtype not in _FLOATS:
        raise ForeignPage(f"{name} is encoded as {tag.codec} and cannot be decoded")
    return TensorSpec(name, tag.dtype, (*part.shape[:3], tag.dim))


def _packed_specs(
    name: str, codec: Codec, own: Sequence[TensorSpec], tags: Tags
) -> list[TensorSpec]:
    if name in tags:
        if tags[name].codec != str(codec.identity):
            raise ForeignPage(f"{name} is packed as {tags[name].codec}, not {codec.identity}")
        return [spec for spec in own if spec.name.startswith(f"{name}.")]
    dense = next((spec for spec in own if spec.name == name), None)
    if dense is None:
        return []
    if not codec.supports(dense.shape[-1], dtype_of(dense.dtype)):
        raise ForeignPage(f"{name} cannot be packed as {codec.identity}")
    return part_specs(dense, codec)


def convert(
    page: Page, expected: Sequence[TensorSpec], codecs: Mapping[str, Codec]
) -> dict[str, Array]:
    """Return a page's tensors in the form that is expected, evaluated; raises ForeignPage.

    Parts are decoded for a dense target; a dense tensor is packed with `codecs` (by dense name)
    for a packed one. Packed tensors never take a dense detour.
    """
    arrays = page_arrays(page)
    tags = tags_of(page.meta)
    made: dict[str, Array] = {}
    for spec in expected:
        if spec.name not in made:
            made |= converted(spec, arrays, tags, codecs)
            evaluate(list(made.values()))
    for spec in expected:
        array = made[spec.name]
        if tuple(array.shape) != spec.shape or dtype_name(array) != spec.dtype:
            raise ForeignPage(
                f"{spec.name} is {dtype_name(array)} {tuple(array.shape)}, "
                f"{spec.dtype} {spec.shape} was expected"
            )
    return made


def converted(
    spec: TensorSpec, arrays: Mapping[str, Array], tags: Tags, codecs: Mapping[str, Codec]
) -> dict[str, Array]:
    """Return a lazy tensor in the form of `spec` (and what was made with it), any token count."""
    base = spec.name.rpartition(".")[0]
    if spec.name in arrays and (base not in codecs or _same(tags.get(base), codecs[base])):
        return {spec.name: arrays[spec.name]}
    if spec.name in tags:
        tag = tags[spec.name]
        prefix = f"{spec.name}."
        parts = {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
        try:
            dense = codec_for(parse_identity(tag.codec)).decode(parts, dtype_of(tag.dtype))
        except (ValueError, KeyError) as error:
            raise ForeignPage(f"{spec.name} cannot be decoded: {error}") from error
        return {spec.name: dense}
    if base in arrays and base in codecs:
        parts = codecs[base].encode(arrays[base])
        return {f"{base}.{part}": array for part, array in parts.items()}
    raise ForeignPage(f"the page has no {spec.name} and nothing to make it from")


def _same(tag: Tag | None, codec: Codec) -> bool:
    return tag is not None and tag.codec == str(codec.identity)
