"""Codecs: how a page's keys and values are encoded. Names are imported on first use; `identity` is
free of MLX, so settings and commands may import it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omlx_cache.package import on_first_use

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
    "AffineCodec": ".codec",
    "Codec": ".codec",
    "PartSpec": ".codec",
    "Parts": ".codec",
    "DenseCodec": ".codec",
    "CODEC_NAMES": ".identity",
    "CodecName": ".identity",
    "check_codec_name": ".identity",
    "CodecPolicy": ".policy",
    "LayerCodecs": ".policy",
    "LayerShape": ".policy",
    "codec_named": ".policy",
    "is_compiled": ".policy",
    "warm_up": ".policy",
    "TurboCodec": ".turbo",
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

__getattr__ = on_first_use(__name__, _HOME)
