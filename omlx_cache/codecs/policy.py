"""Which layers of a model get which codec, and which sequences are worth encoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import mlx.core as mx

from .codec import Codec
from .identity import DEFAULT_MIN_QUANTIZE_TOKENS, DENSE_LAST, CodecName, check_codec_name
from .registry import DENSE, choose_pair

LayerKind = Literal["paged", "window", "state"]


class LayerShape(NamedTuple):
    """What a policy must know of one cache leaf. Zero dims mean that it has no such tensor."""

    kind: LayerKind
    key_dim: int
    value_dim: int
    dtype: mx.Dtype


@dataclass(frozen=True, slots=True)
class LayerCodecs:
    """The codecs of one leaf; `reason` says why it is (partly) dense under a lossy policy."""

    keys: Codec
    values: Codec
    reason: str = ""

    @property
    def identity(self) -> str:
        """Canonical text of both, for people."""
        return f"{self.keys.identity}+{self.values.identity}"


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
        if self.min_quantize_tokens < 0:
            raise ValueError(f"min_quantize_tokens is negative: {self.min_quantize_tokens}")
        if self.dense_last is not None and self.dense_last < 0:
            raise ValueError(f"dense_last is negative: {self.dense_last}")
        if self.seed < 0:
            raise ValueError(f"the codec's seed is negative: {self.seed}")

    def encodes(self, tokens: int) -> bool:
        """Say whether a sequence of that many tokens is long enough to be encoded."""
        return self.name != "dense" and tokens >= self.min_quantize_tokens

    def plan(self, layers: Sequence[LayerShape]) -> tuple[LayerCodecs, ...]:
        """Return one entry for each leaf, in the same order."""
        dense_last = DENSE_LAST.get(self.name, 0) if self.dense_last is None else self.dense_last
        paged = [index for index, layer in enumerate(layers) if layer.kind == "paged"]
        sensitive = frozenset(paged[len(paged) - min(dense_last, len(paged)) :])
        return tuple(self._codecs(layer, index in sensitive) for index, layer in enumerate(layers))

    def _codecs(self, layer: LayerShape, sensitive: bool) -> LayerCodecs:
        if self.name == "dense":
            return LayerCodecs(DENSE, DENSE)
        if layer.kind == "state":
            return LayerCodecs(DENSE, DENSE, "recurrent state is kept as it is")
        if layer.kind == "window" and not self.quantize_windows:
            return LayerCodecs(DENSE, DENSE, "windows are kept as they are")
        if sensitive:
            return LayerCodecs(DENSE, DENSE, "the last KV layers are kept as they are")
        pair = choose_pair(self.name, layer.key_dim, layer.value_dim, layer.dtype, self.seed)
        reasons = [
            f"{side}: {choice.reason}"
            for side, choice in (("keys", pair.keys), ("values", pair.values))
            if choice.reason
        ]
        return LayerCodecs(pair.keys.codec, pair.values.codec, "; ".join(reasons))
