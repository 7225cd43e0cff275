"""What a prompt's tokens do not say: images, audio, the tenant, as mlx-vlm's own hash has them."""

import hashlib
from collections.abc import Sequence

import numpy as np

from omlx_cache.integrations.naming import stand_in
from omlx_cache_storage.keys import Tokens, as_tokens


def marked(tokens: Sequence[int], extra_hash: int, nonce: bytes = b"") -> Tokens:
    """Return the keys' tokens of a prompt: its own, or with a hash other than 0 its own behind a
    first one that stands for both.

    So a prompt with an image is apart from its first token on. What comes before an image is of
    no use to another: mlx-vlm restores no prefix that ends before one, and the hash has the tenant
    in it, who shares nothing. `nonce` makes a hash mean something
    in this process only.
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
