"""The names of codecs: names that settings and commands accept, and identities of stored bytes.
Equal identities decode alike, others never meet. Imports no MLX.

Canonical text: `name/version(key=value,...)#table=digest,...`; the two lists are sorted, and left
out when empty. Example: `turbo-mse/1(bits=4,dim=128)#codebook=4a7696e7a40bb7e0`.
"""

from __future__ import annotations

from collections.abc import Mapping
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
"""The codecs of each name, for keys and for values."""

DENSE_LAST: Final[dict[CodecName, int]] = {"affine4": 1, "turbo4": 1, "turbo3": 1, "turbo2": 1}
"""How many of the last KV layers a codec leaves dense by default. The last one feeds the logits
with nothing behind it to average an error away."""


def check_codec_name(text: str) -> CodecName:
    for name in CODEC_NAMES:
        if name == text:
            return name
    raise ValueError(f"unknown codec {text!r}: choose one of {', '.join(CODEC_NAMES)}")


MAX_TEXT: Final = 1024


def make_identity(
    name: str,
    version: int,
    parameters: Mapping[str, object],
    tables: Mapping[str, str] | None = None,
) -> str:
    """Return what must be equal for parts written by one codec to be read by another. `version` is
    the dialect of the algorithm and of its parts; `tables` are digests of constants that the parts
    lack."""
    text = f"{name}/{version}({_join(parameters)})"
    return f"{text}#{_join(tables)}" if tables else text


def _join(pairs: Mapping[str, object]) -> str:
    return ",".join(f"{key}={pairs[key]}" for key in sorted(pairs))
