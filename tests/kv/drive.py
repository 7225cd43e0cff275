"""Drives a cache of ours and mlx-lm's with the same operations, and compares every bit."""

import copy
import gc
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from hypothesis import strategies as st
from mlx.utils import tree_flatten

from kit.versions import keys_and_values, reloaded, whole_state

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
HEADS, KEY_DIM, VALUE_DIM = 2, 32, 64


def bits(array: mx.array) -> bytes:
    """The array's bytes with its shape and dtype: equal only if bit-identical."""
    mx.eval(array)
    payload = bytes(memoryview(mx.contiguous(array).reshape(-1).view(mx.uint8)))
    return repr((array.shape, array.dtype)).encode() + payload


def assert_same(ours: Any, theirs: Any) -> None:
    """Both trees have the same structure, the same scalars and bit-identical arrays."""
    flat_ours, flat_theirs = tree_flatten(ours), tree_flatten(theirs)
    assert [path for path, _ in flat_ours] == [path for path, _ in flat_theirs]
    for (path, mine), (_, other) in zip(flat_ours, flat_theirs, strict=True):
        if isinstance(other, mx.array):
            assert bits(mine) == bits(other), path
        else:
            assert mine == other, path


def chunk(seed: int, batch: int, length: int, dtype: str) -> tuple[mx.array, mx.array]:
    """Random keys and values (batch, HEADS, length, dim), the same for the same seed."""
    draw = np.random.default_rng(seed)
    keys = draw.standard_normal((batch, HEADS, length, KEY_DIM))
    values = draw.standard_normal((batch, HEADS, length, VALUE_DIM))
    return mx.array(keys).astype(DTYPES[dtype]), mx.array(values).astype(DTYPES[dtype])


def fed(cache: Any, *lengths: int) -> Any:
    """A cache after chunks of these lengths."""
    batch = 1 if not hasattr(cache, "left_padding") else cache.left_padding.size
    for seed, length in enumerate(lengths):
        cache.update_and_fetch(*chunk(seed, batch, length, "float16"))
    return cache


def active() -> int:
    """Bytes that MLX holds."""
    gc.collect()
    mx.clear_cache()  # else a larger, cached buffer may be counted for a smaller one
    return mx.get_active_memory()


class Pair:
    """One cache of each kind; every step is done to both and compared."""

    def __init__(self, ours: Any, theirs: Any, batch: int, dtype: str, *, same_state: bool) -> None:
        self.ours, self.theirs = ours, theirs
        self.batch, self.dtype, self.same_state = batch, dtype, same_state
        self.originals: list[tuple[Any, Any]] = []
        self._seed = 0

    def update(self, length: int) -> None:
        self._seed += 1
        keys, values = chunk(self._seed, self.batch, length, self.dtype)
        self._feed(self.ours, self.theirs, keys, values)

    def trim(self, count: int) -> None:
        if self.theirs.is_trimmable():
            assert self.ours.trim(count) == self.theirs.trim(count)
        assert self.ours.is_trimmable() == self.theirs.is_trimmable()

    def copy(self) -> None:
        """Go on with a deep copy; the originals are compared again at the end."""
        self.originals.append((self.ours, self.theirs))
        self.ours, self.theirs = copy.deepcopy(self.ours), copy.deepcopy(self.theirs)

    def reload(self) -> None:
        """Go on with what `from_state` makes of the state."""
        self.ours = reloaded(self.ours)
        self.theirs = reloaded(self.theirs)

    def check(self) -> None:
        for ours, theirs in [(self.ours, self.theirs), *self.originals]:
            if theirs.keys is None:
                assert ours.empty()
                continue
            keys, values = chunk(987, self.batch, 1, self.dtype)
            self._feed(ours, theirs, keys, values)

    def _feed(self, ours: Any, theirs: Any, keys: mx.array, values: mx.array) -> None:
        for window in (None, 5):
            asked = {"return_array": False, "window_size": window}
            mine, other = (c.make_mask(keys.shape[2], **asked) for c in (ours, theirs))
            assert_same([mine], [other])
        fetched = theirs.update_and_fetch(keys, values)
        assert_same(ours.update_and_fetch(keys, values), fetched)
        # After a long chunk upstream retains more than its window, a planned cache does not.
        window = getattr(theirs, "max_size", None)
        if self.same_state or window is None or theirs.keys.shape[2] <= window:
            assert_same(keys_and_values(ours), keys_and_values(theirs))
        assert (ours.offset, ours.size()) == (theirs.offset, theirs.size())
        if self.same_state:
            assert_same(whole_state(ours), whole_state(theirs))
            assert ours.nbytes == theirs.nbytes


def lengths_around(*edges: int) -> st.SearchStrategy[int]:
    """Update lengths: single tokens often, and those next to the edges."""
    near = sorted({max(1, edge + by) for edge in edges for by in (-1, 0, 1)})
    return st.one_of(st.just(1), st.sampled_from(near), st.integers(1, max(edges) + 2))


def scripts(lengths: st.SearchStrategy[int], *, reload: bool = True) -> st.SearchStrategy[Any]:
    """Sequences of (operation, argument)."""
    steps = [
        st.tuples(st.just("update"), lengths),
        st.tuples(st.just("update"), lengths),
        st.tuples(st.just("trim"), st.integers(0, 12)),
        st.tuples(st.just("copy"), st.none()),
    ]
    if reload:
        steps.append(st.tuples(st.just("reload"), st.none()))
    return st.lists(st.one_of(*steps), min_size=1, max_size=10)


def run(pair: Pair, script: Sequence[tuple[str, int | None]]) -> None:
    for operation, argument in script:
        step = getattr(pair, operation)
        step() if argument is None else step(argument)
    pair.check()
