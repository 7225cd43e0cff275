"""Encoded tensors that NumPy decodes faster than MLX does on a CPU, straight into the buffers."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from omlx_cache.arrays.mlxio import TOKEN_AXIS, HostView, carrier, dtype_of, payload_view
from omlx_cache.codecs import TurboCodec, codec_named
from omlx_cache.codecs.turbo_host import HostDecoder, decodes
from omlx_cache.pages.tensors import Tag, part_specs, tags_of
from omlx_cache_storage.page import Page, TensorSpec

_HALVES = ("BF16", "F16")


class Place(Protocol):
    """Tokens [lo, hi) of a page's tensor go to index `to` of a target."""

    @property
    def lo(self) -> int: ...
    @property
    def hi(self) -> int: ...
    @property
    def to(self) -> int: ...


def decode_into(
    views: Mapping[str, HostView],
    page: Page,
    expected: Sequence[TensorSpec],
    places: Mapping[str, Sequence[Place]],
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
