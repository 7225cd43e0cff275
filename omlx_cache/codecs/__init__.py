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
        Support,
        bytes_per_token,
        join_parts,
        slice_parts,
    )
    from .identity import CODEC_NAMES, CodecIdentity, CodecName, check_codec_name, parse_identity
    from .policy import (
        CodecPolicy,
        LayerCodecs,
        LayerShape,
        codec_for,
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
    "Support": "codec",
    "bytes_per_token": "codec",
    "join_parts": "codec",
    "slice_parts": "codec",
    "DenseCodec": "codec",
    "CodecIdentity": "identity",
    "parse_identity": "identity",
    "CODEC_NAMES": "identity",
    "CodecName": "identity",
    "check_codec_name": "identity",
    "CodecPolicy": "policy",
    "LayerCodecs": "policy",
    "LayerShape": "policy",
    "codec_for": "policy",
    "codec_named": "policy",
    "is_compiled": "policy",
    "warm_up": "policy",
    "TurboCodec": "turbo",
}

__all__ = [
    "CODEC_NAMES",
    "AffineCodec",
    "Codec",
    "CodecIdentity",
    "CodecName",
    "CodecPolicy",
    "DenseCodec",
    "LayerCodecs",
    "LayerShape",
    "PartSpec",
    "Parts",
    "Support",
    "TurboCodec",
    "bytes_per_token",
    "check_codec_name",
    "codec_for",
    "codec_named",
    "is_compiled",
    "join_parts",
    "parse_identity",
    "slice_parts",
    "warm_up",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
