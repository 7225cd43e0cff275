"""What a model is shown beside its tokens, as far as mlx-vlm's own hash of it has gaps."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import mlx.core as mx

WORDS = (
    *("audio", "image", "pixel", "sound", "speech", "video"),
    # What says how patches and frames lie: LFM2-VL's `spatial_shapes`, Mllama's `aspect_ratio_ids`.
    *("aspect", "crop", "feature", "grid", "patch", "spatial", "tgt_sizes", "tile"),
)
COVERED = {"pixel_values", "pixel_values_videos", "input_features"}
"""What its server hashes. phi4mm hears `input_audio_embeds`; and patches in the same order are
another picture in a grid of another shape (`image_grid_thw`)."""


def with_media(extra_hash: int, prompt_kwargs: Mapping[str, Any]) -> int:
    """Return a prompt's hash, with what else of it was seen or heard; the same hash when there is
    nothing else. Masks and positions of its tokens are left out: they are made from those."""
    found = sorted(
        name
        for name, value in prompt_kwargs.items()
        if value is not None and name not in COVERED and any(word in name for word in WORDS)
    )
    embeds = prompt_kwargs.get("inputs_embeds")
    length = None if embeds is None else int(embeds.shape[1])
    apc = import_module("mlx_vlm.apc")
    for name in found:
        value = prompt_kwargs[name]
        if name.startswith(("_", "cached_")):
            continue
        if _is_of_tokens(name, value, length):
            continue
        payload = apc._hash_payload(value)
        if payload is not None:
            extra_hash = apc._stable_int_hash(extra_hash, apc._hash_payload(name), payload)
    return int(extra_hash)


def _is_of_tokens(name: str, value: Any, length: int | None) -> bool:
    """True for a mask or for positions of a prompt's tokens. A length alone says nothing: sound has
    80 or 128 numbers a frame, and a prompt may have as many tokens."""
    named = "mask" in name or "position" in name
    return named and isinstance(value, mx.array) and value.shape[-1:] == (length,)
