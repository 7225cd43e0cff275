"""What a prompt's tokens do not say: images, sound, the tenant, as mlx-vlm's own hash has them, and
what that hash lacks."""

import hashlib
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import mlx.core as mx
import numpy as np

from omlx_cache.integrations.naming import stand_in
from omlx_cache_storage.keys import Tokens, as_tokens

WORDS = (
    *("audio", "image", "pixel", "sound", "speech", "video"),
    # What says how patches and frames lie: LFM2-VL's `spatial_shapes`, Mllama's `aspect_ratio_ids`.
    *("aspect", "crop", "feature", "grid", "patch", "spatial", "tgt_sizes", "tile"),
)
COVERED = {"pixel_values", "pixel_values_videos", "input_features"}
"""What its server hashes. phi4mm hears `input_audio_embeds`; and patches in the same order are
another picture in a grid of another shape (`image_grid_thw`)."""


def marked(tokens: Sequence[int], extra_hash: int, nonce: bytes = b"") -> Tokens:
    """Return the keys' tokens of a prompt: its own, or with a hash other than 0 its own behind a
    first one that stands for both.

    So a prompt with an image is apart from its first token on. What comes before an image is of
    no use to another: mlx-vlm restores no prefix that ends before one, and the hash has the tenant
    in it, who shares nothing. `nonce` makes a hash mean something in this process only.
    """
    keyed = as_tokens(list(tokens))
    if not extra_hash or not len(keyed):
        return keyed
    digest = hashlib.sha256(nonce)
    digest.update(extra_hash.to_bytes(16, "little", signed=True))
    digest.update(int(keyed[0]).to_bytes(8, "little", signed=True))
    replaced = np.array(keyed)
    replaced[0] = stand_in(digest.digest())
    return as_tokens(replaced.tolist())


def with_media(extra_hash: int, prompt_kwargs: Mapping[str, Any]) -> int:
    """Return a prompt's hash, with what else of it was seen or heard; the same hash when there is
    nothing else. Masks and positions of its tokens are left out: they are made from those."""
    embeds = prompt_kwargs.get("inputs_embeds")
    length = None if embeds is None else int(embeds.shape[1])
    apc = import_module("mlx_vlm.apc")
    for name, value in sorted(prompt_kwargs.items()):
        seen = any(word in name for word in WORDS) and not name.startswith(("_", "cached_"))
        if value is None or name in COVERED or not seen or _is_of_tokens(name, value, length):
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
