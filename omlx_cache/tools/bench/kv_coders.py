"""Ways to store KV that `bench-kv` compares: the codecs of a policy, and zstd on dense pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx
import numpy as np

from omlx_cache.arrays.mlxio import TOKEN_AXIS, on_host
from omlx_cache.codecs import LayerCodecs, Parts
from omlx_cache_storage.format import planes

from .kv_data import KVSample

PAGE_TOKENS = 256
GPU_SPAN_TOKENS = 2048

Decoded = list[tuple[mx.array, mx.array]]
"""Keys and values of each layer."""

_Frames = list[bytes]


class Coder(Protocol):
    """Encodes layers and gives them back; evaluates MLX."""

    def encode(self, layers: Sequence[KVSample]) -> int:
        """Encode all pages, keep them, and return their bytes."""

    def decode(self) -> Decoded:
        """Decode what was last encoded, evaluated."""


class CodecCoder:
    """A policy's codecs. One synchronisation for each span of tokens: short ones leave a GPU idle,
    long ones fall out of a CPU's cache and need memory for what lies between input and parts.
    """

    def __init__(self, plan: Sequence[LayerCodecs]) -> None:
        self._plan = plan
        self._spans: list[list[tuple[Parts, Parts]]] = []
        self._dtypes: list[mx.Dtype] = []

    def encode(self, layers: Sequence[KVSample]) -> int:
        step = PAGE_TOKENS if on_host() else GPU_SPAN_TOKENS
        self._spans = [
            [_span(codecs, layer, start, step) for start in range(0, layer.tokens, step)]
            for codecs, layer in zip(self._plan, layers, strict=True)
        ]
        self._dtypes = [layer.keys.dtype for layer in layers]
        spans = (parts for layer in self._spans for span in layer for parts in span)
        return sum(array.nbytes for parts in spans for array in parts.values())

    def decode(self) -> Decoded:
        decoded = []
        for codecs, spans, dtype in zip(self._plan, self._spans, self._dtypes, strict=True):
            keys = codecs.keys.decode(_joined([span[0] for span in spans]), dtype)
            values = codecs.values.decode(_joined([span[1] for span in spans]), dtype)
            mx.eval(keys, values)
            decoded.append((keys, values))
        return decoded


def _joined(pieces: Sequence[Parts]) -> Parts:
    """Return the lazy concatenation of one tensor's parts along its tokens."""
    return {name: mx.concatenate([p[name] for p in pieces], axis=TOKEN_AXIS) for name in pieces[0]}


class PlanesCoder:
    """zstd on the high byte plane of dense pages; a page that it does not shrink stays raw."""

    def __init__(self) -> None:
        self._frames: list[tuple[_Frames, _Frames]] = []
        self._layers: Sequence[KVSample] = ()

    def encode(self, layers: Sequence[KVSample]) -> int:
        self._layers = layers
        self._frames = [(_pack(layer.keys), _pack(layer.values)) for layer in layers]
        frames = (frame for layer in self._frames for side in layer for frame in side)
        return sum(len(f) for f in frames)

    def decode(self) -> Decoded:
        return [
            (_unpack(layer.keys, keys), _unpack(layer.values, values))
            for layer, (keys, values) in zip(self._layers, self._frames, strict=True)
        ]


def _span(codecs: LayerCodecs, layer: KVSample, start: int, step: int) -> tuple[Parts, Parts]:
    keys = layer.keys[:, :, start : start + step]
    values = layer.values[:, :, start : start + step]
    parts = codecs.keys.encode(keys), codecs.values.encode(values)
    kept = [codecs.keys.encodable(keys, parts[0]), codecs.values.encodable(values, parts[1])]
    mx.eval(parts, kept)
    if not all(flag.item() for flag in kept):
        names = f"{codecs.keys.identity}+{codecs.values.identity}"
        raise ValueError(f"{layer.name}: a value is outside the range of {names}")
    return parts


def _pack(x: mx.array) -> _Frames:
    frames: _Frames = []
    for start in range(0, x.shape[2], PAGE_TOKENS):
        page = mx.contiguous(x[:, :, start : start + PAGE_TOKENS])
        raw = np.array(page.view(mx.uint16), copy=False).tobytes()
        frames.append(planes.pack(raw) or raw)
    return frames


def _unpack(like: mx.array, frames: _Frames) -> mx.array:
    _, heads, tokens, dim = like.shape
    joined = np.empty((heads, tokens, dim), np.uint16)
    for index, frame in enumerate(frames):
        start = index * PAGE_TOKENS
        held = min(PAGE_TOKENS, tokens - start)
        size = heads * held * dim * 2
        raw = planes.unpack(frame, size) if len(frame) < size else frame
        page = np.frombuffer(raw, np.uint16).reshape(heads, held, dim)
        joined[:, start : start + held] = page
    return mx.array(joined[None]).view(like.dtype)
