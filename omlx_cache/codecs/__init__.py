"""Codecs: how a page's keys and values are encoded. Public names are imported on first use.

`identity` is free of MLX, so settings and commands may import it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .codec import (
        AffineCodec,
        Codec,
        DenseCodec,
        Parts,
        PartSpec,
    )
    from .identity import CODEC_NAMES, CodecName, check_codec_name
    from .policy import (
        CodecPolicy,
        LayerCodecs,
        LayerShape,
        codec_named,
        is_compiled,
        warm_up,
    )
    from .turbo import TurboCodec

_HOME = {
    "AffineCodec": "codec",
    "Codec": "codec",
    "PartSpec": "codec",
    "Parts": "codec",
    "DenseCodec": "codec",
    "CODEC_NAMES": "identity",
    "CodecName": "identity",
    "check_codec_name": "identity",
    "CodecPolicy": "policy",
    "LayerCodecs": "policy",
    "LayerShape": "policy",
    "codec_named": "policy",
    "is_compiled": "policy",
    "warm_up": "policy",
    "TurboCodec": "turbo",
}

__all__ = [
    "CODEC_NAMES",
    "AffineCodec",
    "Codec",
    "CodecName",
    "CodecPolicy",
    "DenseCodec",
    "LayerCodecs",
    "LayerShape",
    "PartSpec",
    "Parts",
    "TurboCodec",
    "check_codec_name",
    "codec_named",
    "is_compiled",
    "warm_up",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
