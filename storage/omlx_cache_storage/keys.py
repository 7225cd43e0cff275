"""Block keys: a hash chain over blocks of tokens, rooted in a namespace digest.

A key is the digest of (parent key, the tokens since the parent's position). Every token takes eight
bytes and the parent's length is known, so no two inputs encode alike. NumPy is imported where
tokens are: a command that lists files does not wait for it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NewType, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

BlockKey = NewType("BlockKey", bytes)
Tokens: TypeAlias = "npt.NDArray[np.int64]"

KEY_HASH = "sha256"
"""The key hash in a namespace's document. Older versions also had xxh3, in other namespaces."""
_NAMESPACE_TAG = b"omlx-cache namespace v1\0"
NAMESPACE_BYTES = 32
COMPARED_TOKENS = 4096
"""Tokens that are compared at a time: few, since most prompts differ at their beginning."""
PARENT_HINT_BYTES = 8
"""Bytes of the parent's key in a page's name: enough to find the page before, not to trust it."""


def _digest(parent: bytes, tokens: bytes) -> BlockKey:
    return BlockKey(hashlib.sha256(parent + tokens).digest())


def namespace_digest(document: Mapping[str, object]) -> BlockKey:
    """Return the SHA-256 of a JSON document, the same for every order of its fields.

    Raises TypeError for values that JSON cannot express, for keys that are not text, and for
    tuples. Raises ValueError for NaN and infinities: JSON would write them like something else.
    """
    text = json.dumps(
        document, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
    )
    if json.loads(text) != document:
        raise TypeError("a namespace has keys that are no text, or tuples: JSON writes them alike")
    # Escapes would write a surrogate pair like the one character that it stands for.
    return BlockKey(hashlib.sha256(_NAMESPACE_TAG + text.encode("utf-8", "surrogatepass")).digest())


def as_tokens(tokens: "Sequence[int] | npt.NDArray[np.integer]") -> Tokens:
    """Return the tokens as a fresh little-endian int64 vector; raises ValueError for anything else.

    Negative ids are allowed: servers use them for image positions.
    """
    import numpy as np

    array = np.asarray(tokens)
    if array.size == 0:
        return np.empty(0, dtype="<i8")
    # Of signed types all values fit, so that none is looked at.
    if array.ndim == 1 and (
        array.dtype.kind == "i" or (array.dtype.kind == "u" and int(array.max()) < 2**63)
    ):
        return array.astype("<i8", copy=True)
    # NumPy makes floats or objects of integers that no type of it holds together.
    far = [
        one
        for one in np.asarray(tokens, dtype=object).ravel()
        if isinstance(one, int) and not -(2**63) <= one < 2**63
    ]
    got = f"the token {far[0]}" if far else f"{array.dtype} of shape {array.shape}"
    raise ValueError(
        f"tokens must be a flat sequence of integers from -2**63 to 2**63 - 1, got {got}"
    )


def shared_length(one: Tokens, other: Tokens) -> int:
    import numpy as np

    length = min(len(one), len(other))
    for start in range(0, length, COMPARED_TOKENS):
        part = slice(start, min(length, start + COMPARED_TOKENS))
        differs = np.flatnonzero(one[part] != other[part])
        if differs.size:
            return start + int(differs[0])
    return length


class KeyChain:
    """The keys of one token sequence, computed when asked for and kept; those of a common prefix
    come from a `known` chain of the same namespace and block size.

    `extend` appends tokens, on one thread; keys already given stay valid. Other threads may ask for
    keys meanwhile: an abandoned restore may still need them.
    """

    def __init__(
        self,
        namespace: BlockKey,
        tokens: Tokens,
        block_size: int,
        known: "KeyChain | None" = None,
    ) -> None:
        if len(namespace) != NAMESPACE_BYTES or block_size < 1:
            raise ValueError(f"a namespace of {len(namespace)} bytes, blocks of {block_size}")
        self.namespace = namespace
        self.block_size = block_size
        self.tokens = self._buffer = tokens
        self._boundaries: list[BlockKey] = [namespace]
        if known is not None:
            self._boundaries = known._boundaries[
                : shared_length(known.tokens, tokens) // block_size + 1
            ]

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Tokens) -> None:
        import numpy as np

        begin, length = len(self.tokens), len(self.tokens) + len(tokens)
        if length > len(self._buffer):
            grown = np.empty(max(length, 2 * len(self._buffer), self.block_size), dtype="<i8")
            grown[:begin] = self.tokens
            self._buffer = grown
        self._buffer[begin:length] = tokens
        self.tokens = self._buffer[:length]

    def key(self, position: int) -> BlockKey:
        """Return the key of the prefix of `position` tokens, 1 <= position <= len(self)."""
        if not 0 < position <= len(self.tokens):
            raise ValueError(f"position {position} is outside 1..{len(self.tokens)}")
        blocks, rest = divmod(position, self.block_size)
        while (known := len(self._boundaries)) <= blocks:
            start = (known - 1) * self.block_size
            chunk = self._buffer[start : start + self.block_size].tobytes()
            # By its place: appended by two threads at once, it would shift all keys behind it.
            self._boundaries[known : known + 1] = [_digest(self._boundaries[known - 1], chunk)]
        if rest == 0:
            return self._boundaries[blocks]
        chunk = self._buffer[position - rest : position].tobytes()
        return _digest(self._boundaries[blocks], chunk)

    def boundaries(self, first: int, last: int) -> list[BlockKey]:
        """Return the keys of the prefixes of `first` to `last` blocks, both included; of no block
        it is the namespace."""
        if last:
            self.key(last * self.block_size)
        return self._boundaries[first : last + 1]

    def parent(self, position: int) -> BlockKey:
        boundary = self.block_start(position)
        return self.namespace if boundary == 0 else self.key(boundary)

    def block_start(self, position: int) -> int:
        """Return where the block that ends at or covers `position - 1` begins."""
        return (position - 1) // self.block_size * self.block_size
