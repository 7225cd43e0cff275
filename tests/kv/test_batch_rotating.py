"""Batches of rotating windows: upstream's bits with keep 0, each row's own result with keep."""

import copy
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx_lm.models import cache as upstream

from kit.examples import examples
from kit.versions import whole_state
from kv.drive import DTYPES, HEADS, KEY_DIM, assert_same, chunk
from omlx_cache.kv import RotatingKVCache

WINDOW, KEEP, STEP = 12, 4, 8
quick = settings(
    max_examples=examples(25, 300), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
row_lengths = st.lists(st.integers(0, 3 * WINDOW), min_size=1, max_size=3)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("decode"), st.integers(1, 9)),
        st.tuples(st.just("prefill"), st.integers(2, 2 * WINDOW)),
        st.tuples(st.just("padded"), st.integers(2, WINDOW + 3)),
        st.tuples(st.just("copy"), st.none()),
        st.tuples(st.just("drop first"), st.none()),
        st.tuples(st.just("trim"), st.integers(0, 3)),
    ),
    min_size=1,
    max_size=6,
)


@pytest.fixture(autouse=True)
def short_upstream_step(monkeypatch: pytest.MonkeyPatch) -> None:
    for cls in (upstream.RotatingKVCache, upstream.BatchRotatingKVCache):
        monkeypatch.setattr(cls, "step", STEP)


def filled(cache: Any, length: int, seed: int, dtype: str, *, decoded: int = 0) -> Any:
    """The cache after a prefill of `length` tokens, the last `decoded` of them one by one."""
    keys, values = chunk(seed, 1, length, dtype)
    first = max(0, length - decoded)
    if first:
        cache.update_and_fetch(keys[..., :first, :], values[..., :first, :])
    for at in range(first, length):
        cache.update_and_fetch(keys[..., at : at + 1, :], values[..., at : at + 1, :])
    return cache


class Steps:
    """What is done to batches, and to the single caches of their rows where there are some."""

    rows: int
    batches: list[Any]
    singles: Sequence[Any] = ()

    @abstractmethod
    def feed(self, length: int, padding: list[int] | None = None) -> None:
        """Feed all rows, and compare."""

    def step(self, name: str, argument: Any) -> None:
        if name == "decode":
            for _ in range(argument):
                self.feed(1)
        elif name == "prefill":
            self.feed(argument)
        elif name == "padded":
            padding = [(row * 5) % argument for row in range(self.rows)]
            for batch in self.batches:
                lengths = [argument - pad for pad in padding]
                batch.prepare(lengths=lengths, right_padding=padding)
            self.feed(argument, padding)
            for batch in self.batches:
                batch.finalize()
        elif name == "copy":
            self.batches = copy.deepcopy(self.batches)
        elif name == "drop first" and self.rows > 1:
            self.rows, self.singles = self.rows - 1, self.singles[1:]
            for batch in self.batches:
                batch.filter(list(range(1, self.rows + 1)))
        elif name == "trim" and self.batches[-1].is_trimmable():
            count = min([argument, *(single.offset for single in self.singles)])
            assert len({cache.trim(count) for cache in (*self.batches, *self.singles)}) == 1


class Batches(Steps):
    """The same batch in both implementations."""

    def __init__(self, lengths: list[int], dtype: str, capacity: int | None) -> None:
        self.rows, self.dtype, self.seed = len(lengths), dtype, 100
        kinds = (
            lambda: RotatingKVCache(WINDOW, capacity=capacity),
            lambda: upstream.RotatingKVCache(WINDOW),
        )
        self.batches = [
            make().merge(
                [filled(make(), n, seed, dtype, decoded=5) for seed, n in enumerate(lengths)]
            )
            for make in kinds
        ]

    def feed(self, length: int, padding: list[int] | None = None) -> None:
        self.seed += 1
        keys, values = chunk(self.seed, self.rows, length, self.dtype)
        ours, theirs = self.batches
        assert_same(ours.make_mask(length), theirs.make_mask(length))
        assert_same(ours.offset, theirs.offset)
        assert_same(ours.update_and_fetch(keys, values), theirs.update_and_fetch(keys, values))


@quick
@given(row_lengths, steps, st.sampled_from(sorted(DTYPES)), st.sampled_from([None, 6, WINDOW]))
def test_batch_of_windows_returns_what_upstream_returns(
    lengths: list[int], script: Any, dtype: str, capacity: int | None
) -> None:
    batches = Batches(lengths, dtype, capacity)
    for name, argument in script:
        batches.step(name, argument)
    batches.feed(1)
    for row in range(batches.rows):
        mine, other = (batch.extract(row) for batch in batches.batches)
        assert isinstance(mine, RotatingKVCache)
        assert mine.capacity == capacity
        assert_same(whole_state(mine), whole_state(other))


def attended(keys: mx.array, values: mx.array, mask: Any) -> mx.array:
    queries = mx.ones((keys.shape[0], HEADS, 1, KEY_DIM))
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.1, mask=mask)


class Rows(Steps):
    """A batch with keep, and beside it each row in a RotatingKVCache of its own."""

    def __init__(self, lengths: list[int], capacity: int | None) -> None:
        self.singles = [
            filled(RotatingKVCache(WINDOW, KEEP), n, seed, "float32", decoded=5)
            for seed, n in enumerate(lengths)
        ]
        for cache in self.singles:
            cache.capacity = capacity
        self.batches = [RotatingKVCache.merge(copy.deepcopy(self.singles))]
        self.rows, self.seed = len(lengths), 100

    @property
    def batch(self) -> Any:
        return self.batches[0]

    def feed(self, length: int, padding: list[int] | None = None) -> None:
        """Feed all rows, and compare the newest `length` tokens' view of the past."""
        self.seed += 1
        keys, values = chunk(self.seed, len(self.singles), length, "float32")
        mask = self.batch.make_mask(length)
        all_keys, all_values = self.batch.update_and_fetch(keys, values)
        for row, single in enumerate(self.singles):
            real = length - (padding[row] if padding else 0)
            if real == 0:
                continue
            own_mask = single.make_mask(real, return_array=real > 1)
            part = (slice(row, row + 1), slice(None), slice(0, real))
            own_keys, own_values = single.update_and_fetch(keys[part], values[part])
            for query in range(real):
                expected = attended(
                    own_keys, own_values, None if own_mask is None else own_mask[query]
                )
                actual = attended(
                    all_keys[row : row + 1], all_values[row : row + 1], mask[row, 0, query]
                )
                assert mx.allclose(actual, expected, atol=1e-5), (row, query)


@quick
@given(row_lengths, steps, st.sampled_from([None, 6, WINDOW]))
def test_batch_with_keep_attends_to_what_each_row_would_alone(
    lengths: list[int], script: Any, capacity: int | None
) -> None:
    rows = Rows(lengths, capacity)
    for name, argument in script:
        rows.step(name, argument)
    rows.feed(1)
    for row, single in enumerate(rows.singles):
        extracted = rows.batch.extract(row)
        assert (extracted.keep, extracted.max_size) == (KEEP, WINDOW)
        assert extracted.offset == single.offset
        held = single.size()
        for name in ("keys", "values"):
            ordered = extracted._temporal_order(getattr(extracted, name))
            own = single._temporal_order(getattr(single, name))
            recent = held - min(KEEP, held)
            assert_same(ordered[..., :KEEP, :], own[..., :KEEP, :])
            assert_same(ordered[..., held - recent :, :], own[..., own.shape[2] - recent :, :])


@quick
@given(row_lengths, row_lengths)
def test_extended_batch_with_keep_equals_the_merge_of_all(
    first: list[int], second: list[int]
) -> None:
    def caches(lengths: list[int], seed: int) -> list[RotatingKVCache]:
        return [
            filled(RotatingKVCache(WINDOW, KEEP), n, seed + at, "float32")
            for at, n in enumerate(lengths)
        ]

    batch = RotatingKVCache.merge(caches(first, 0))
    batch.extend(RotatingKVCache.merge(caches(second, 50)))
    whole = RotatingKVCache.merge([*caches(first, 0), *caches(second, 50)])
    assert_same(batch.state[2:], whole.state[2:])
    for row in range(len(first) + len(second)):
        assert_same(whole_state(batch.extract(row)), whole_state(whole.extract(row)))


def test_a_finished_row_keeps_its_last_token_while_the_others_prompts_go_on() -> None:
    rows = Rows([3, 20], capacity=None)
    rows.batch.prepare(lengths=[1, 4], right_padding=[3, 0])
    for start, length in ((0, 2), (2, 1), (3, 1)):
        padding = [min(length, max(0, start + length - real)) for real in (1, 4)]
        rows.feed(length, padding)
    rows.batch.finalize()
    assert rows.batch.offset.tolist() == [4, 24]
    rows.feed(1)


def test_merge_of_unlike_windows_names_them() -> None:
    with pytest.raises(ValueError, match=r"\(12, 0\), \(12, 4\)"):
        RotatingKVCache.merge([RotatingKVCache(12, 4), RotatingKVCache(12)])
