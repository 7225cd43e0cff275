"""Which codec: of a name for each layer of a model, or with a stored identity; and which sequences
are worth encoding."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import mlx.core as mx

from . import turbo_fused
from .codec import GROUP_SIZES, AffineCodec, Codec
from .identity import (
    DEFAULT_MIN_QUANTIZE_TOKENS,
    DENSE_LAST,
    HALVES,
    MAX_TEXT,
    CodecName,
    check_codec_name,
)
from .turbo import NormMode, TurboCodec

_IDENTITY = re.compile(r"([a-z-]+)/[0-9]+\(([^()#]*)\)(?:#(.+))?")

LayerKind = Literal["paged", "window", "state"]


class LayerShape(NamedTuple):
    """A policy's knowledge of one cache leaf; a dim is 0 where it has no such tensor."""

    kind: LayerKind
    key_dim: int
    value_dim: int
    dtype: mx.Dtype


class LayerCodecs(NamedTuple):
    """The codecs of one leaf; None for a side that stays dense."""

    keys: Codec | None = None
    values: Codec | None = None


@dataclass(frozen=True, slots=True)
class CodecPolicy:
    """The codec of every leaf, decided from its shape and place; pure and deterministic.

    `dense_last` is how many of the last paged layers stay dense; None takes the codec's own
    default: one for turbo2-4 and affine4, none for affine8 and k8v4. Recurrent state has no token
    axis and is always dense.
    """

    name: CodecName = "dense"
    min_quantize_tokens: int = DEFAULT_MIN_QUANTIZE_TOKENS
    dense_last: int | None = None
    quantize_windows: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_codec_name(self.name)
        for name, value in (
            ("min_quantize_tokens", self.min_quantize_tokens),
            ("dense_last", self.dense_last or 0),
            ("the codec's seed", self.seed),
        ):
            if value < 0:
                raise ValueError(f"{name} is negative: {value}")

    def encodes(self, tokens: int) -> bool:
        return self.name != "dense" and tokens >= self.min_quantize_tokens

    def plan(self, layers: Sequence[LayerShape]) -> tuple[LayerCodecs, ...]:
        dense_last = DENSE_LAST.get(self.name, 0) if self.dense_last is None else self.dense_last
        paged = [index for index, layer in enumerate(layers) if layer.kind == "paged"]
        sensitive = frozenset(paged[len(paged) - min(dense_last, len(paged)) :])
        return tuple(self._codecs(layer, index in sensitive) for index, layer in enumerate(layers))

    def _codecs(self, layer: LayerShape, sensitive: bool) -> LayerCodecs:
        is_kept = layer.kind == "state" or (layer.kind == "window" and not self.quantize_windows)
        if is_kept or sensitive:
            return LayerCodecs()
        # TurboQuant rotates values by `seed + 1`, as mlx-vlm does.
        keys, values = HALVES[self.name]
        return LayerCodecs(
            _choose(keys, layer.key_dim, layer.dtype, self.seed),
            _choose(values, layer.value_dim, layer.dtype, self.seed + 1),
        )


def _choose(half: str, dim: int, dtype: mx.Dtype, seed: int) -> Codec | None:
    if half == "dense":
        return None
    bits = int(half[-1])
    try:
        # Preferred first.
        codecs: list[Codec] = (
            [AffineCodec(bits, group) for group in GROUP_SIZES]
            if half.startswith("affine")
            else [TurboCodec(dim, bits, seed)]
        )
    except ValueError:
        return None
    return next((codec for codec in codecs if not codec.refusal(dim, dtype)), None)


@lru_cache(64)
def codec_named(text: str) -> Codec:
    """Return the codec with exactly that identity; raises ValueError when this build has none.
    Parts of another dialect or table would decode to other numbers."""
    codec = _candidate(text)
    if codec.identity != text:
        raise ValueError(f"codec {text} is not {codec.identity} of this build")
    return codec


def warm_up(codec: Codec, dim: int, dtype: mx.Dtype) -> None:
    """Encode and decode one token now; evaluates MLX, and may block for seconds the first time on a
    machine."""
    parts = codec.encode(mx.ones((1, 1, 1, dim), dtype))
    mx.eval(codec.decode(parts, dtype))


def is_compiled(name: CodecName) -> bool:
    """True when MLX compiles kernels for a codec here, which takes seconds."""
    return turbo_fused.available() and any(half.startswith("turbo") for half in HALVES[name])


def _candidate(text: str) -> Codec:
    match = _IDENTITY.fullmatch(text) if len(text) <= MAX_TEXT else None
    if match is None:
        raise ValueError(f"not a codec identity: {text[:80]!r}")
    fields = {key: value for key, _, value in (f.partition("=") for f in match[2].split(","))}
    try:
        if match[1] == "affine":
            return AffineCodec(_number(fields["bits"]), _number(fields["group"]))
        if match[1] == "turbo-mse":
            # Tables of many channels take seconds to make: not for an identity that names none.
            if (match[3] or "").count("=") != 2:
                raise ValueError(f"codec {text} does not name its two tables")
            norm: NormMode = "plain" if fields["norm"] == "plain" else "corrected"
            dim, bits = _number(fields["dim"]), _number(fields["bits"])
            return TurboCodec(dim, bits, _number(fields["seed"]), norm)
    except KeyError as error:
        raise ValueError(f"codec {text} lacks the parameter {error}") from None
    raise ValueError(f"codec {match[1]!r} is not known to this build")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise ValueError(f"codec parameter {text[:80]} is not a number")
    return int(text)
