"""How integrations name models, and prompts by their tokens."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from omlx_cache_storage.keys import as_tokens


def model_name(model_path: str | None) -> str:
    """Return what names a model in a namespace: a directory's own name, or the hub id.

    A model that is moved keeps its cache; its weights are part of the identity anyway.
    """
    if not model_path:
        return ""
    path = Path(model_path).expanduser()
    return path.resolve().name if path.is_dir() else str(model_path)


def digest_of(tokens: Sequence[int]) -> bytes:
    """Return 16 bytes that stand for a prompt in a table of this process."""
    return hashlib.blake2b(as_tokens(list(tokens)).tobytes(), digest_size=16).digest()


def stand_in(digest: bytes) -> int:
    """Return a negative id, which no vocabulary has, with as many bits of a digest as it holds. It
    stands in keys for a token and for the image or sound beside it."""
    return -1 - (int.from_bytes(digest[:8], "little") >> 1)
