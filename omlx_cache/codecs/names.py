"""The codec names that settings and commands accept. Imports no MLX."""

from __future__ import annotations

from typing import Final, Literal, get_args

CodecName = Literal["dense", "affine8", "affine4", "k8v4", "turbo4", "turbo3", "turbo2"]

CODEC_NAMES: Final[tuple[CodecName, ...]] = get_args(CodecName)
DEFAULT_MIN_QUANTIZE_TOKENS: Final = 256

HALVES: Final[dict[CodecName, tuple[str, str]]] = {
    "dense": ("dense", "dense"),
    "affine8": ("affine8", "affine8"),
    "affine4": ("affine4", "affine4"),
    "k8v4": ("affine8", "affine4"),
    "turbo4": ("turbo4", "turbo4"),
    "turbo3": ("turbo3", "turbo3"),
    "turbo2": ("turbo2", "turbo2"),
}
"""What each name means for keys and for values."""

DENSE_LAST: Final[dict[CodecName, int]] = {"affine4": 1, "turbo4": 1, "turbo3": 1, "turbo2": 1}
"""How many of the last KV layers a codec leaves dense unless told otherwise: the last one feeds
the logits with nothing behind it to average an error away."""


def check_codec_name(text: str) -> CodecName:
    """Return the name; raises ValueError that lists the known ones."""
    for name in CODEC_NAMES:
        if name == text:
            return name
    raise ValueError(f"unknown codec {text!r}: choose one of {', '.join(CODEC_NAMES)}")
