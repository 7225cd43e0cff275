"""Synthetic KV: every bit follows from the tokens up to a position, the layer and the side.

Another token anywhere in the prefix changes every value behind it, so a page of another prefix,
position, layer or salt shows at once.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_LAYERS = np.uint64(1_000_003)

Words = np.ndarray[Any, np.dtype[np.uint64]]


def _mix(words: Words) -> Words:
    """SplitMix64's finaliser: a bijection in which every input bit moves every output bit."""
    words = words + _GOLDEN
    words = (words ^ (words >> np.uint64(30))) * _FIRST
    words = (words ^ (words >> np.uint64(27))) * _SECOND
    return words ^ (words >> np.uint64(31))


class Truth:
    """What caches must hold after these tokens; immutable. `prefix` has a word for the tokens up to
    each."""

    def __init__(self, tokens: Sequence[int]) -> None:
        places = np.arange(len(tokens), dtype=np.uint64)
        drawn = _mix(np.asarray(tokens, dtype=np.uint64) ^ _mix(places))
        self.prefix = _mix(np.cumsum(drawn, dtype=np.uint64))

    def __len__(self) -> int:
        return len(self.prefix)

    def rows(self, layer: int, side: int, heads: int, width: int, start: int, stop: int) -> Any:
        """Return float16 values of shape (1, heads, tokens, width), finite, all bits drawn."""
        count = heads * width
        words = self._draw(layer, side, -(-count // 4), self.prefix[start:stop])
        bits = words.view(np.uint16)[:, :count]
        # Exponents of infinities and NaNs would make quantised layers incomparable.
        bits = bits & np.uint16(0xBBFF)
        return np.ascontiguousarray(bits.reshape(stop - start, heads, width).transpose(1, 0, 2))[
            None
        ].view(np.float16)

    def state(self, layer: int, entry: int, shape: tuple[int, ...], position: int) -> Any:
        """Return a recurrent array in float32 as it is after `position` tokens."""
        count = int(np.prod(shape))
        words = self._draw(layer, 64 + entry, -(-count // 2), self.prefix[position - 1 : position])
        bits = words.view(np.uint32)[:, :count] & np.uint32(0xBF7FFFFF)
        return bits.reshape(shape).view(np.float32)

    def _draw(self, layer: int, side: int, count: int, prefix: Words) -> Words:
        lane = np.arange(count, dtype=np.uint64) + _mix(
            np.uint64(layer) * _LAYERS + np.asarray([side], np.uint64)
        )
        return np.ascontiguousarray(_mix(prefix[:, None] + _mix(lane)[None, :]))
