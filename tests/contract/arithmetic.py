"""A model whose keys, values and states are arithmetic on its tokens: nothing is computed, so that
a test can say what every byte of a cache must be, on every machine and in every process.

`feed` does what a model does with a chunk of tokens: it appends to the caches. `wrong` says what in
a restored cache is not what an uninterrupted run would hold.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

HEADS, DIM, WINDOW, KEEP = 2, 32, 24, 4

DENSE = ("kv", "kv")
HYBRID = ("kv", "state")
WINDOWED = ("kv", "window")


class Arithmetic(nn.Module):
    """`kinds` names a cache for each layer: kv, window, keep (a window with a beginning), state.
    Two models of different `weights` are different models."""

    def __init__(self, kinds: Sequence[str] = DENSE, weights: int = 0) -> None:
        super().__init__()
        self._kinds = tuple(kinds)
        self.weight = mx.array(np.arange(8, dtype=np.float32) + weights)

    @property
    def config(self) -> dict[str, Any]:
        return {"kinds": list(self._kinds)}

    def make_cache(self) -> list[Any]:
        made = {
            "kv": KVCache,
            "window": lambda: RotatingKVCache(max_size=WINDOW),
            "keep": lambda: RotatingKVCache(max_size=WINDOW, keep=KEEP),
            "state": lambda: ArraysCache(2),
        }
        return [made[kind]() for kind in self._kinds]

    def feed(self, caches: Sequence[Any], chunk: Sequence[int], start: int) -> None:
        """Append the tokens of a chunk, which stand at `start` and after it."""
        for layer, (kind, cache) in enumerate(zip(self._kinds, caches, strict=True)):
            if kind == "state":
                old = 0 if cache[0] is None else np.array(cache[0])[0]
                state = np.mod(old + _summed(chunk, start, layer), 251).astype(np.float32)
                cache[0] = mx.array(state[None])
                cache[1] = mx.array(state[None, :, :4]).astype(mx.bfloat16)
            else:
                keys, values = (_rows(chunk, start, layer, side) for side in (0, 1))
                cache.update_and_fetch(_array(keys), _array(values))

    def run(self, tokens: Sequence[int], step: int = 32) -> list[Any]:
        """Return the caches of an uninterrupted run."""
        caches = self.make_cache()
        for start in range(0, len(tokens), step):
            self.feed(caches, tokens[start : start + step], start)
        return caches

    def wrong(self, caches: Sequence[Any], tokens: Sequence[int], position: int) -> str:
        """Say what of caches that should hold the first `position` tokens is not right; "" when
        all is. A window must hold what the next token needs, and nothing that is not so."""
        if len(caches) != len(self._kinds):
            return f"{len(caches)} caches"
        for layer, (kind, cache) in enumerate(zip(self._kinds, caches, strict=True)):
            said = self._wrong(kind, cache, tokens[:position], layer)
            if said:
                return f"layer {layer} ({kind}): {said}"
        return ""

    def _wrong(self, kind: str, cache: Any, tokens: Sequence[int], layer: int) -> str:
        count = len(tokens)
        if kind == "state":
            if not count:
                return "" if cache[0] is None else "state of no tokens"
            state = np.mod(_summed(tokens, 0, layer), 251).astype(np.float32)
            short = mx.array(state[None, :, :4]).astype(mx.bfloat16)
            same = np.array_equal(np.array(cache[0])[0], state)
            return "" if same and mx.array_equal(cache[1], short).item() else "another state"
        if cache.offset != count:
            return f"offset {cache.offset}, not {count}"
        if not count:
            return ""
        for side, held in enumerate((cache.keys, cache.values)):
            right = _bits(_array(_rows(tokens, 0, layer, side)))
            found = _bits(held[:, :, : min(count, held.shape[2])])
            if kind == "kv":
                if not np.array_equal(found, right):
                    return f"side {side} differs"
                continue
            here = {row.tobytes(): place for place, row in enumerate(right.swapaxes(1, 2)[0])}
            places = {here.get(row.tobytes()) for row in found.swapaxes(1, 2)[0]}
            if None in places:
                return f"side {side} has a row of no token"
            first = set(range(min(count, KEEP))) if kind == "keep" else set()
            room = WINDOW - 1 - len(first)
            missing = (first | set(range(max(0, count - room), count))) - places
            if missing:
                return f"side {side} lacks tokens {sorted(missing)}"
        return ""


def tokens_of(seed: int, count: int) -> list[int]:
    """Token ids that follow from a seed, the same everywhere; some are negative, as servers use
    them for positions of images."""
    state, made = seed * 2_654_435_761 + 12_345, []
    for _ in range(count):
        state = (state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
        made.append((state >> 33) % 50_000 - 100)
    return made


def _rows(tokens: Sequence[int], start: int, layer: int, side: int) -> Any:
    """(heads, tokens, dim) of small integers that no other token, place, layer or side has."""
    token = np.array(tokens, dtype=np.int64)[None, :, None]
    place = np.arange(start, start + len(tokens), dtype=np.int64)[None, :, None]
    head = np.arange(HEADS, dtype=np.int64)[:, None, None]
    lane = np.arange(DIM, dtype=np.int64)[None, None, :]
    mixed = token * (7 * lane + 3) + place * (5 * lane + 11) + 17 * layer + 29 * side + 101 * head
    return np.mod(np.mod(mixed, 65_521) ** 2, 251) - 125


def _summed(tokens: Sequence[int], start: int, layer: int) -> Any:
    """(4, 8) sums over tokens and places: a state that depends on every token before it."""
    token = np.array(tokens, dtype=np.int64)
    place = np.arange(start, start + len(tokens), dtype=np.int64)
    cell = np.arange(1, 33, dtype=np.int64)[:, None]
    mixed = np.mod(7 * token * cell + 13 * place * (cell + 3) + 31 * cell + layer, 65_521) ** 2
    return np.mod(mixed.sum(axis=1), 251).reshape(4, 8)


def _array(rows: Any) -> mx.array:
    return mx.array(rows[None].astype(np.float32)).astype(mx.bfloat16)


def _bits(array: mx.array) -> Any:
    return np.array(array.view(mx.uint16))
