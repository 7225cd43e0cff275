"""Block keys: a hash chain over blocks of tokens, rooted in a namespace digest.

A key is the digest of (parent key, the tokens since the parent's position). The parent has a
fixed length and every token takes eight bytes, so no two inputs encode alike.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NewType

import numpy as np
import numpy.typing as npt
import xxhash

BlockKey = NewType("BlockKey", bytes)
KeyHash = Literal["sha256", "xxh3"]
Tokens = npt.NDArray[np.int64]

_NAMESPACE_TAG = b"omlx-cache namespace v1\0"
_HASHES: dict[str, Callable[[bytes], bytes]] = {
    "sha256": lambda data: hashlib.sha256(data).digest(),
    "xxh3": lambda data: xxhash.xxh3_128_digest(data),
}


def namespace_digest(document: Mapping[str, object]) -> BlockKey:
    """Return the SHA-256 of a JSON document, the same for every order of its fields.

    Raises TypeError for values that JSON cannot express.
    """
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return BlockKey(hashlib.sha256(_NAMESPACE_TAG + text.encode()).digest())


def as_tokens(tokens: Sequence[int] | npt.NDArray[np.integer]) -> Tokens:
    """Return the tokens as a fresh little-endian int64 vector; raises ValueError for anything else.

    Negative ids are allowed: servers use them for image positions.
    """
    array = np.asarray(tokens)
    if array.size == 0:
        return np.empty(0, dtype="<i8")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"tokens must be a flat sequence of integers, got {array.dtype} of shape {array.shape}"
        )
    if array.dtype.kind == "u" and array.dtype.itemsize == 8 and int(array.max()) >= 2**63:
        raise ValueError("token ids must fit in a signed 64-bit integer")
    return array.astype("<i8", copy=True)


class KeyChain:
    """The keys of one token sequence, computed when asked for and kept.

    Not thread-safe. `extend` appends tokens; keys already given stay valid.
    """

    def __init__(
        self,
        namespace: BlockKey,
        tokens: Tokens,
        block_size: int,
        key_hash: KeyHash = "sha256",
    ) -> None:
        self.namespace = namespace
        self.block_size = block_size
        self._digest = _HASHES[key_hash]
        self._tokens = tokens
        self._boundaries: list[BlockKey] = [namespace]

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def tokens(self) -> Tokens:
        return self._tokens

    def extend(self, tokens: Tokens) -> None:
        """Append tokens."""
        self._tokens = np.concatenate([self._tokens, tokens])

    def key(self, position: int) -> BlockKey:
        """Return the key of the prefix of `position` tokens, 1 <= position <= len(self)."""
        if not 0 < position <= len(self._tokens):
            raise ValueError(f"position {position} is outside 1..{len(self._tokens)}")
        blocks, rest = divmod(position, self.block_size)
        while len(self._boundaries) <= blocks:
            start = (len(self._boundaries) - 1) * self.block_size
            chunk = self._tokens[start : start + self.block_size]
            self._boundaries.append(BlockKey(self._digest(self._boundaries[-1] + chunk.tobytes())))
        if rest == 0:
            return self._boundaries[blocks]
        chunk = self._tokens[position - rest : position]
        return BlockKey(self._digest(self._boundaries[blocks] + chunk.tobytes()))

    def parent(self, position: int) -> BlockKey:
        """Return the key that `key(position)` was chained to: that of the boundary before it."""
        boundary = self.block_start(position)
        return self.namespace if boundary == 0 else self.key(boundary)

    def block_start(self, position: int) -> int:
        """Return where the block that ends at or covers `position - 1` begins."""
        return (position - 1) // self.block_size * self.block_size
