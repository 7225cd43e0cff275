"""How caches and pages are laid out: a prompt cache's leaves by path, in layer groups; a page's
tensors, how each is encoded, the form that a leaf expects, and views of them.

A page says for every encoded tensor which codec made it, from which dtype and how many channels
(`PageMeta.codec`, JSON; "dense" when nothing is encoded). Nothing is inferred from shapes. A tensor
that does not fit raises ForeignPage: a miss.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import mlx.core as mx

from omlx_cache.adapters.base import Adapter, GroupSpec, UnsupportedCache
from omlx_cache.adapters.registry import adapter_for, layout_name, leaves
from omlx_cache.arrays.mlxio import TOKEN_AXIS, Array, dtype_of, name_of
from omlx_cache.codecs.codec import Codec
from omlx_cache.codecs.policy import codec_named
from omlx_cache_storage.errors import ForeignPage
from omlx_cache_storage.page import ITEM_BYTES, Page, PageMeta, Tensors, TensorSpec, shared_tensors

T = TypeVar("T")
DENSE = "dense"
FLOATS = ("F16", "BF16", "F32")
"""The dtypes that a codec encodes, and decodes to."""
_SIDES = ("keys", "values")
_CODECS = 32
"""More than the different codecs of one page; to look at one may take a second."""
_ORDER = {"paged": 0, "window": 1, "state": 2}


@dataclass(frozen=True, slots=True)
class Leaf:
    """One live cache object: `path` is its index in the list, dotted inside a CacheList."""

    path: str
    cache: Any
    adapter: Adapter
    group: GroupSpec

    def arrays(self) -> dict[str, Array]:
        return self.adapter.arrays(self.cache)

    def position(self) -> int | None:
        return self.adapter.position(self.cache)


@dataclass(frozen=True, slots=True)
class Layout:
    """The leaves of one prompt cache, and their distinct groups: paged first, then windows, then
    state. Two caches with equal `signature` can share pages."""

    leaves: tuple[Leaf, ...]
    groups: tuple[GroupSpec, ...]
    signature: str

    def of(self, group: GroupSpec) -> list[Leaf]:
        return [leaf for leaf in self.leaves if leaf.group == group]

    def phases(self, group: GroupSpec) -> str:
        """Return a window group's ring phases as JSON, "" when all are temporal."""
        phases = {
            leaf.path: dict(phase)
            for leaf in self.of(group)
            if (phase := leaf.adapter.phase(leaf.cache))
        }
        return json.dumps(phases, sort_keys=True, separators=(",", ":")) if phases else ""

    def position(self) -> int | None:
        """Return how many tokens the cache has seen: None when no used leaf says. Raises
        UnsupportedCache when leaves disagree."""
        seen = {leaf.position() for leaf in self.leaves if leaf.arrays()} - {None}
        if len(seen) > 1:
            raise UnsupportedCache(f"layers disagree about the position: {sorted(map(str, seen))}")
        return next(iter(seen), None)

    def is_empty(self) -> bool:
        return not any(leaf.arrays() for leaf in self.leaves)

    def is_used(self) -> bool:
        """True for a cache that was fed, and that an adapter reads."""
        try:
            return not self.is_empty()
        except UnsupportedCache:
            return False


def layout_of(prompt_cache: Sequence[Any]) -> Layout:
    """Return the layout of a prompt cache; raises UnsupportedCache."""
    found: list[Leaf] = []
    described: list[list[object]] = []
    for path, cache in leaves(prompt_cache):
        adapter = adapter_for(cache)
        found.append(Leaf(path, cache, adapter, adapter.group(cache)))
        described.append([path, layout_name(cache), adapter.config(cache)])
    distinct = {leaf.group for leaf in found}
    groups = sorted(distinct, key=lambda g: (_ORDER[g.kind], g.window, g.keep))
    signature = json.dumps(described, separators=(",", ":"), sort_keys=True)
    return Layout(tuple(found), tuple(groups), signature)


class Tag(NamedTuple):
    """A tensor's codec, and its form before encoding."""

    codec: str
    dtype: str
    dim: int


Tags = Mapping[str, Tag]


def tags_of(meta: PageMeta) -> Tags:
    return {} if meta.codec == DENSE else _read_tags(meta.codec)


@lru_cache(8)
def _read_tags(codec: str) -> Tags:
    try:
        tags = {name: Tag(*fields) for name, fields in json.loads(codec).items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ForeignPage(f"the codec {codec[:80]!r} cannot be read") from error
    if not all(map(_is_sound, tags.values())) or len({t.codec for t in tags.values()}) > _CODECS:
        raise ForeignPage(f"the codec {codec[:80]!r} is none of a page")
    return tags


def _is_sound(tag: Tag) -> bool:
    return type(tag.codec) is type(tag.dtype) is str and type(tag.dim) is int and tag.dim > 0


def codec_text(tags: Tags) -> str:
    return json.dumps(tags, sort_keys=True, separators=(",", ":")) if tags else DENSE


def live_tags(leaves: Sequence[Leaf]) -> dict[str, Tag]:
    tags = {}
    for leaf in leaves:
        packing = leaf.adapter.packing(leaf.cache)
        if packing is not None:
            for side, form in packing.forms.items():
                identity = packing.codec(side, form.dim).identity
                tags[f"{leaf.path}.{side}"] = Tag(identity, form.dtype, form.dim)
    return tags


def part_specs(spec: TensorSpec, codec: Codec) -> list[TensorSpec]:
    parts = codec.parts_spec(spec.shape, dtype_of(spec.dtype))
    return [
        TensorSpec(f"{spec.name}.{name}", name_of(part.dtype), tuple(part.shape))
        for name, part in parts.items()
    ]


def page_arrays(page: Page) -> dict[str, Array]:
    """Return lazy views of a page's tensors; they pin its payload."""
    arrays: dict[str, Array] = {}
    offset = 0
    for spec in page.meta.tensors:
        end = offset + spec.nbytes
        dtype = dtype_of(spec.dtype)
        arrays[spec.name] = (
            page.payload[offset:end].view(dtype).reshape(spec.shape)
            if spec.nbytes
            else mx.zeros(spec.shape, dtype)
        )
        offset = end
    return arrays


def file_order(specs: Iterable[TensorSpec]) -> list[TensorSpec]:
    """Order tensors so that equal shapes lie side by side, wide items first (for alignment)."""
    alike: dict[tuple[str, tuple[int, ...]], list[TensorSpec]] = {}
    for spec in specs:
        alike.setdefault((spec.dtype, spec.shape), []).append(spec)
    together = chain.from_iterable(alike.values())
    return sorted(together, key=lambda spec: -ITEM_BYTES[spec.dtype])


def wanted_specs(leaf: Leaf, meta: PageMeta) -> dict[str, TensorSpec]:
    """Return, by field, the tensors that a leaf wants of a page, in the page's token count; raises
    ForeignPage when the page holds another packing than the leaf can take."""
    prefix = f"{leaf.path}."
    own = _specs_of_leaves(shared_tensors(meta.tensors)).get(leaf.path, {})
    tags = {} if meta.codec == DENSE else _tags_of_leaves(meta.codec).get(leaf.path, {})
    for spec in own.values():
        sized = not meta.held or spec.shape[TOKEN_AXIS : TOKEN_AXIS + 1] == (meta.held,)
        if not sized or spec.shape[:1] != (1,):
            # Of a batch, or of another token count than its page.
            raise ForeignPage(f"{spec.name} of shape {spec.shape} is in a page of {meta.held}")
    if leaf.adapter.packing(leaf.cache) is None:
        specs = [_dense_spec(name, tag, own) for name, tag in tags.items()]
        specs += [spec for name, spec in own.items() if name.rpartition(".")[0] not in tags]
    else:
        packed = packing_codecs(leaf, meta).items()
        specs = [spec for n, codec in packed for spec in _packed_specs(n, codec, own, tags.get(n))]
    return {spec.name.removeprefix(prefix): spec for spec in specs}


@lru_cache(8)
def _specs_of_leaves(tensors: Tensors) -> Mapping[str, Mapping[str, TensorSpec]]:
    return _of_leaves({spec.name: spec for spec in tensors})


@lru_cache(8)
def _tags_of_leaves(codec: str) -> Mapping[str, Tags]:
    return _of_leaves(_read_tags(codec))


def _of_leaves(named: Mapping[str, T]) -> Mapping[str, Mapping[str, T]]:
    """Return what tensors are named for, by each path of a leaf that a name may begin with."""
    found: dict[str, dict[str, T]] = {}
    for name, item in named.items():
        steps = name.split(".")
        for count in range(1, len(steps)):
            found.setdefault(".".join(steps[:count]), {})[name] = item
    return found


def packing_codecs(leaf: Leaf, meta: PageMeta) -> dict[str, Codec]:
    """Return the codecs in which a leaf keeps a page's tensors, by dense name; {} if plain."""
    packing = leaf.adapter.packing(leaf.cache)
    if packing is None:
        return {}
    dims = {spec.name: spec.shape[-1] for spec in meta.tensors}
    dims |= {name: tag.dim for name, tag in tags_of(meta).items()}
    names = {side: f"{leaf.path}.{side}" for side in _SIDES}
    try:
        return {n: packing.codec(side, dims[n]) for side, n in names.items() if n in dims}
    except ValueError as error:
        raise ForeignPage(str(error)) from error


def _dense_spec(name: str, tag: Tag, own: Mapping[str, TensorSpec]) -> TensorSpec:
    parts = _parts(name, own)
    if not parts or tag.dtype not in FLOATS:
        raise ForeignPage(f"{name} is encoded as {tag.codec} and cannot be decoded")
    dense = TensorSpec(name, tag.dtype, (*parts[0].shape[:3], tag.dim))
    try:
        codec = codec_named(tag.codec)
    except ValueError as error:
        raise ForeignPage(f"{name} cannot be decoded: {error}") from error
    _refuse_other_parts(dense, parts, codec)
    return dense


def _parts(name: str, own: Mapping[str, TensorSpec]) -> list[TensorSpec]:
    return [spec for spec in own.values() if spec.name.startswith(f"{name}.")]


def _refuse_other_parts(dense: TensorSpec, parts: Sequence[TensorSpec], codec: Codec) -> None:
    try:
        made = set(part_specs(dense, codec))
    except ValueError as error:
        raise ForeignPage(f"{dense.name} cannot be {codec.identity}: {error}") from error
    if made != set(parts):
        raise ForeignPage(f"{dense.name} has other parts than {codec.identity} makes of it")


def _packed_specs(
    name: str, codec: Codec, own: Mapping[str, TensorSpec], tag: Tag | None
) -> list[TensorSpec]:
    if tag is not None:
        if tag.codec != codec.identity:
            raise ForeignPage(f"{name} is packed as {tag.codec}, not {codec.identity}")
        parts = _parts(name, own)
        # A TurboQuant cache does not tell its dtype, which its parts do not depend on.
        dtype = tag.dtype if tag.dtype in FLOATS else FLOATS[0]
        shape = (*parts[0].shape[:3], tag.dim) if parts else ()
        _refuse_other_parts(TensorSpec(name, dtype, shape), parts, codec)
        return parts
    dense = own.get(name)
    if dense is None:
        return []
    if codec.refusal(dense.shape[-1], dtype_of(dense.dtype)):
        raise ForeignPage(f"{name} cannot be packed as {codec.identity}")
    return part_specs(dense, codec)


def refuse_tensors_of_no_leaf(meta: PageMeta, members: Sequence[Leaf]) -> None:
    """Raise ForeignPage for a page with tensors of other leaves."""
    prefixes = tuple(f"{leaf.path}." for leaf in members)
    others = [spec.name for spec in meta.tensors if not spec.name.startswith(prefixes)]
    if others:
        raise ForeignPage(f"a page of group {meta.group} has {others[:3]} of no leaf")
