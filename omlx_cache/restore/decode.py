"""Encoded pages: a page's tensors in the form that a target wants.

What cannot be brought into it exactly raises ForeignPage: a miss. Some tensors NumPy decodes faster
than MLX does on a CPU, straight into the buffers.
"""

from collections.abc import Iterator, Mapping, Sequence

from omlx_cache.arrays.mlxio import (
    TOKEN_AXIS,
    Array,
    HostView,
    carrier,
    dtype_name,
    dtype_of,
    evaluate,
    payload_view,
)
from omlx_cache.codecs import Codec, TurboCodec, codec_named
from omlx_cache.codecs.turbo_host import HostDecoder, decodes
from omlx_cache.pages.tensors import Tag, Tags, page_arrays, part_specs, tags_of
from omlx_cache.restore.plan import Span
from omlx_cache_storage.errors import ForeignPage
from omlx_cache_storage.page import Page, TensorSpec

HOST_BATCH_BYTES = 512 << 10
"""What is decoded on the CPU before MLX is asked to evaluate: what stays in a core's cache."""
_HALVES = ("BF16", "F16")


def convert(
    page: Page,
    expected: Sequence[TensorSpec],
    codecs: Mapping[str, Codec],
    most: int | None = None,
) -> Iterator[dict[str, Array]]:
    """Yield a page's tensors by name in the form that is expected, evaluated, some `most` bytes at
    a time, or `HOST_BATCH_BYTES`; raises ForeignPage.

    Parts are decoded for a dense target; a dense tensor is packed with `codecs` (by dense name)
    for a packed one. Packed tensors never take a dense detour.
    """
    arrays = page_arrays(page)
    tags = tags_of(page.meta)
    specs = {spec.name: spec for spec in expected}
    seen: set[str] = set()
    for batch in batches_of(expected, most or HOST_BATCH_BYTES):
        made: dict[str, Array] = {}
        for spec in batch:
            if spec.name not in seen:
                found = converted(spec, arrays, tags, codecs)
                made |= {name: array for name, array in found.items() if name in specs}
                seen |= found.keys()
        for name, array in made.items():
            _refuse_other_shape(array, specs[name])
        evaluate(list(made.values()))
        yield made


def _refuse_other_shape(array: Array, spec: TensorSpec) -> None:
    if tuple(array.shape) != spec.shape or dtype_name(array) != spec.dtype:
        raise ForeignPage(
            f"{spec.name} is {dtype_name(array)} {tuple(array.shape)}, "
            f"{spec.dtype} {spec.shape} was expected"
        )


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
            dense = codec_named(tag.codec).decode(parts, dtype_of(tag.dtype))
        except (ValueError, KeyError) as error:
            raise ForeignPage(f"{spec.name} cannot be decoded: {error}") from error
        return {spec.name: dense}
    if base in arrays and base in codecs:
        parts = codecs[base].encode(arrays[base])
        return {f"{base}.{part}": array for part, array in parts.items()}
    raise ForeignPage(f"the page has no {spec.name} and nothing to make it from")


def _same(tag: Tag | None, codec: Codec) -> bool:
    return tag is not None and tag.codec == str(codec.identity)


def batches_of(specs: Sequence[TensorSpec], most: int) -> Iterator[list[TensorSpec]]:
    """Yield tensors of up to `most` bytes together, a larger one by itself."""
    batch: list[TensorSpec] = []
    nbytes = 0
    for spec in specs:
        if batch and nbytes + spec.nbytes > most:
            yield batch
            batch, nbytes = [], 0
        batch.append(spec)
        nbytes += spec.nbytes
    if batch:
        yield batch


def decode_into(
    views: Mapping[str, HostView],
    page: Page,
    expected: Sequence[TensorSpec],
    places: Mapping[str, Sequence[Span]],
) -> list[TensorSpec]:
    """Decode what is decoded here into its places, and return the other tensors: those that MLX
    decodes, and those with which something is wrong. Evaluates nothing."""
    tags = tags_of(page.meta)
    stored = _Stored(page)
    left: list[TensorSpec] = []
    decoders: dict[tuple[int, str], HostDecoder] = {}
    for spec in expected:
        codec = _codec_of(spec, tags.get(spec.name))
        parts = None if codec is None else stored.parts(spec, codec)
        if codec is None or parts is None:
            left.append(spec)
            continue
        key = codec.dim, spec.dtype
        if key not in decoders:
            decoders[key] = HostDecoder(codec.dim, bfloat=spec.dtype == "BF16")
        norms, words = parts
        target = views[spec.name]
        rows = target.reshape(-1, *target.shape[TOKEN_AXIS:])
        for place in places[spec.name]:
            tokens = slice(place.lo, place.hi)
            out = rows[:, place.to : place.to + place.hi - place.lo]
            decoders[key].decode(codec.seed, norms[:, tokens], words[:, tokens], out)
    return left


class _Stored:
    """A page's tensors, and where they are."""

    def __init__(self, page: Page) -> None:
        self._payload = payload_view(page.payload)
        self._offsets: dict[TensorSpec, int] = {}
        offset = 0
        for spec in page.meta.tensors:
            self._offsets[spec] = offset
            offset += spec.nbytes

    def parts(self, dense: TensorSpec, codec: TurboCodec) -> tuple[HostView, HostView] | None:
        """Return norms (rows, tokens) and words (rows, tokens, words), None if the page has
        others."""
        specs = part_specs(dense, codec)
        if any(spec not in self._offsets for spec in specs):
            return None
        norms, words = (self._view(spec) for spec in specs)
        return norms.view("<f2"), words

    def _view(self, spec: TensorSpec) -> HostView:
        start = self._offsets[spec]
        flat: HostView = self._payload[start : start + spec.nbytes].view(carrier(spec.dtype))
        return flat.reshape(-1, *spec.shape[TOKEN_AXIS:])


def _codec_of(spec: TensorSpec, tag: Tag | None) -> TurboCodec | None:
    """Return the codec of a tensor that is decoded here."""
    if tag is None or spec.dtype not in _HALVES or tag.dtype != spec.dtype or not spec.nbytes:
        return None
    try:
        codec = codec_named(tag.codec)
    except ValueError:
        return None
    if not isinstance(codec, TurboCodec) or not decodes(codec.dim, codec.bits):
        return None
    return codec if codec.supports(spec.shape[-1], dtype_of(spec.dtype)) else None
