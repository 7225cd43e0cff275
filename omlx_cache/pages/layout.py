"""How caches and pages are laid out: a prompt cache's leaves by path, in layer groups; a page's
tensors, how each is encoded, the form that a leaf expects, and views of them.

A page says for every encoded tensor which codec made it, from which dtype and how many channels
(`PageMeta.codec`, JSON; "dense" when nothing is encoded). Nothing is inferred from shapes. A tensor
that does not fit raises ForeignPage: a miss.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import mlx.core as mx

from omlx_cache.adapters.base import Adapter, GroupSpec, Packing, UnsupportedCache
from omlx_cache.adapters.registry import entry_of, leaves
from omlx_cache.arrays.mlxio import DTYPES, NAMES, TOKEN_AXIS, Array
from omlx_cache.codecs.codec import Codec
from omlx_cache.codecs.policy import codec_named
from omlx_cache_storage.errors import ForeignPage
from omlx_cache_storage.page import ITEM_BYTES, PageMeta, TensorSpec

T = TypeVar("T")
DENSE = "dense"
FLOATS = ("F16", "BF16", "F32")
"""The dtypes that a codec encodes, and decodes to."""
_SIDES = ("keys", "values")
_CODECS = 32
"""More than the different codecs of one page; to look at one may take a second."""
_ORDER = {"paged": 0, "window": 1, "state": 2}


class Leaf(NamedTuple):
    """One live cache object: `path` is its index in the list, dotted inside a CacheList."""

    path: str
    cache: Any
    adapter: Adapter
    group: GroupSpec


class Layout(NamedTuple):
    """The leaves of one prompt cache, and of its distinct groups: paged first, then windows, then
    state. Two caches with equal `signature` can share pages."""

    leaves: Sequence[Leaf]
    groups: Mapping[GroupSpec, Sequence[Leaf]]
    signature: str

    def position(self) -> int | None:
        """Return how many tokens the cache has seen: 0 when it is empty, None when no used leaf
        says. Raises UnsupportedCache when leaves disagree."""
        seen: set[int | None] = set()
        for leaf in self.leaves:
            if leaf.adapter.arrays(leaf.cache):
                seen.add(leaf.adapter.position(leaf.cache))
        if not seen:
            return 0
        seen.discard(None)
        if len(seen) > 1:
            raise UnsupportedCache(f"layers disagree about the position: {sorted(map(str, seen))}")
        return next(iter(seen), None)

    def is_used(self) -> bool:
        """True for a cache that was fed, and that an adapter reads."""
        try:
            return any(leaf.adapter.arrays(leaf.cache) for leaf in self.leaves)
        except UnsupportedCache:
            return False


def layout_of(prompt_cache: Sequence[Any]) -> Layout:
    """Return the layout of a prompt cache; raises UnsupportedCache."""
    found: list[Leaf] = []
    groups: dict[GroupSpec, list[Leaf]] = {}
    described: list[list[object]] = []
    for path, cache in leaves(prompt_cache):
        adapter, name = entry_of(cache)
        leaf = Leaf(path, cache, adapter, adapter.group(cache))
        found.append(leaf)
        groups.setdefault(leaf.group, []).append(leaf)
        described.append([path, name, adapter.config(cache)])
    ordered = sorted(groups.items(), key=lambda g: (_ORDER[g[0].kind], g[0].window, g[0].keep))
    signature = json.dumps(described, separators=(",", ":"), sort_keys=True)
    return Layout(found, dict(ordered), signature)


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


def part_specs(spec: TensorSpec, codec: Codec) -> list[TensorSpec]:
    parts = codec.parts_spec(spec.shape, DTYPES[spec.dtype])
    return [
        TensorSpec(f"{spec.name}.{name}", NAMES[part.dtype], tuple(part.shape))
        for name, part in parts.items()
    ]


def page_arrays(tensors: Iterable[TensorSpec], payload: Array) -> dict[str, Array]:
    """Return lazy views of a page's tensors; they pin its payload."""
    arrays: dict[str, Array] = {}
    offset = 0
    for spec in tensors:
        end = offset + spec.nbytes
        dtype = DTYPES[spec.dtype]
        arrays[spec.name] = (
            payload[offset:end].view(dtype).reshape(spec.shape)
            if spec.nbytes
            else mx.zeros(spec.shape, dtype)
        )
        offset = end
    return arrays


def file_order(specs: Iterable[TensorSpec]) -> list[TensorSpec]:
    """Order tensors so that equal shapes lie side by side, wide items first (for alignment)."""
    alike: dict[tuple[int, str, tuple[int, ...]], list[TensorSpec]] = {}
    for spec in specs:
        alike.setdefault((ITEM_BYTES[spec.dtype], spec.dtype, spec.shape), []).append(spec)
    wide_first = sorted(alike, key=itemgetter(0), reverse=True)
    return list(chain.from_iterable(map(alike.__getitem__, wide_first)))


def wanted_specs(
    members: Iterable[Leaf], meta: PageMeta
) -> Iterator[tuple[Leaf, dict[str, TensorSpec], Mapping[str, Codec]]]:
    """Yield a group's leaves with what each wants of a page: the tensors by field, in the page's
    token count, and the codecs in which it keeps them, by dense name; {} if plain. Raises
    ForeignPage for tensors of other leaves, of a batch, or packed as a leaf cannot take them."""
    own = _of_leaves(members, {spec.name: spec for spec in meta.tensors})
    if "" in own:
        raise ForeignPage(f"a page of group {meta.group} has {[*own['']][:3]} of no leaf")
    tags = {} if meta.codec == DENSE else _of_leaves(members, tags_of(meta))
    for leaf in members:
        mine, tagged = own[leaf.path], tags.get(leaf.path, {})
        for spec in mine.values():
            sized = not meta.held or spec.shape[TOKEN_AXIS : TOKEN_AXIS + 1] == (meta.held,)
            if not sized or spec.shape[:1] != (1,):
                # Of a batch, or of another token count than its page.
                raise ForeignPage(f"{spec.name} of shape {spec.shape} is in a page of {meta.held}")
        specs: Iterable[TensorSpec] = mine.values()
        codecs: Mapping[str, Codec] = {}
        packing = leaf.adapter.packing(leaf.cache)
        if packing is not None:
            codecs = _packing_codecs(packing, leaf.path, mine, tagged)
            specs = [s for n, c in codecs.items() for s in _packed_specs(n, c, mine, tagged.get(n))]
        elif tagged:
            plain = [spec for n, spec in mine.items() if n.rpartition(".")[0] not in tagged]
            specs = [*(_dense_spec(n, tag, mine) for n, tag in tagged.items()), *plain]
        yield leaf, {s.name.removeprefix(f"{leaf.path}."): s for s in specs}, codecs


def _of_leaves(members: Iterable[Leaf], named: Mapping[str, T]) -> dict[str, dict[str, T]]:
    """Return what is named for tensors by the path of the leaf that they belong to; by "" what
    belongs to none."""
    found: dict[str, dict[str, T]] = {}
    for leaf in members:
        found[leaf.path] = {}
    for name, item in named.items():
        path = name.rpartition(".")[0]
        while path and path not in found:
            path = path.rpartition(".")[0]
        found.setdefault(path, {})[name] = item
    return found


def _packing_codecs(
    packing: Packing, path: str, own: Mapping[str, TensorSpec], tags: Tags
) -> dict[str, Codec]:
    dims = {name: spec.shape[-1] for name, spec in own.items()}
    dims |= {name: tag.dim for name, tag in tags.items()}
    names = {side: f"{path}.{side}" for side in _SIDES}
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
    if codec.refusal(dense.shape[-1], DTYPES[dense.dtype]):
        raise ForeignPage(f"{name} cannot be packed as {codec.identity}")
    return part_specs(dense, codec)
