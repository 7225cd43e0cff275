"""The codec names that settings and commands accept. Imports no MLX."""

from __future__ import annotations

from typing import Final, Literal, get_args

CodecName = Literal["dense", "affine8", "affine4", "k8v4", "turbo4", "turbo3", "turbo2"]

CODEC_NAMES: Final[tuple[CodecName, ...]] = get_args(CodecName)
DEFAULT_MIN_QUANTIZE_TOKENS: Final = 256

EXPERIMENTAL: Final[frozenset[CodecName]] = frozenset({"affine4", "turbo3", "turbo2"})
"""Names whose losses show in answers; docs/codecs.md has the figures."""


def check_codec_name(text: str) -> CodecName:
    """Return the name; raises ValueError that lists the known ones."""
    for name in CODEC_NAMES:
        if name == text:
            return name
    raise ValueError(f"unknown codec {text!r}: choose one of {', '.join(CODEC_NAMES)}")
