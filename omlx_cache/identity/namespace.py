"""The namespace document: everything that makes KV incompatible, and its digest."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from omlx_cache.identity.parts import salt_digest, software
from omlx_cache_storage.format.version import FORMAT_VERSION
from omlx_cache_storage.keys import BlockKey, namespace_digest


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Namespace:
    """A digest, the first parent of every chain in it, and the document it was made from; and the
    names of the layer groups whose pages are in it, () where they are not known."""

    digest: BlockKey
    document: Mapping[str, object]
    groups: tuple[str, ...] = ()


def make_namespace(
    *,
    model: str,
    adapter: str,
    architecture: str,
    layout: str,
    block_size: int,
    key_hash: str,
    codec: str,
    salt: str | bytes | None,
    extra: Mapping[str, str],
    label: str = "",
    groups: tuple[str, ...] = (),
) -> Namespace:
    """Return the namespace of these parts; `label` names the model for people, and no more, and
    `groups` follow from the layout.

    The salt is hashed, so that the readable document does not give it away. Versions of MLX and
    mlx-lm and the device's architecture are part of it: others may compute other bits. Raises
    TypeError for a salt that is neither text nor bytes.
    """
    document: dict[str, object] = {
        "format": FORMAT_VERSION,
        "model": model,
        "adapter": adapter,
        "architecture": architecture,
        "layout": hashlib.sha256(layout.encode()).hexdigest(),
        "block_size": block_size,
        "key_hash": key_hash,
        "codec": codec,
        "salt": salt_digest(salt),
        "extra": dict(extra),
        "software": software(),
    }
    digest = namespace_digest(document)
    return Namespace(digest, {**document, "label": label} if label else document, groups)


def computed_by(document: Mapping[str, object]) -> str:
    """Return what stands for a namespace's model on its kind of machine: namespaces of other salts
    and settings share how fast it computes. Empty for an empty document."""
    parts = [document.get(name) for name in ("model", "adapter", "architecture")]
    if parts == [None, None, None]:
        return ""
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()
