"""KVCacheManager: slots, positions, errors; checked against plain lists of tokens."""

import mlx.core as mx
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, multiple, rule

from kit.examples import examples
from kv.drive import assert_same
from omlx_cache.kv import (
    AdvanceError,
    AppendError,
    KVCacheManager,
    KVError,
    NoFreeSlotError,
    SequenceState,
    SequenceTooLongError,
    UnknownSequenceError,
)

SLOTS, LAYERS, LENGTH, HEADS, DIM = 3, 2, 24, 2, 8


def pool() -> KVCacheManager:
    return KVCacheManager(SLOTS, LAYERS, LENGTH, HEADS, DIM, mx.float16)


def rows(seed: int, length: int) -> mx.array:
    return mx.random.normal((1, HEADS, length, DIM), key=mx.random.key(seed)).astype(mx.float16)


class PoolAgainstLists(RuleBasedStateMachine):
    """Every sequence's content is what was appended and advanced, whatever the others do."""

    ids = Bundle("ids")

    @initialize()
    def start(self) -> None:
        self.pool = pool()
        self.model: dict[int, list[list[mx.array]]] = {}
        self.limit: dict[int, int] = {}
        self.seed = 0

    @rule(target=ids, max_len=st.integers(1, LENGTH + 2))
    def allocate(self, max_len: int) -> object:
        if max_len > LENGTH:
            with pytest.raises(SequenceTooLongError, match=f"max_seq_len of {LENGTH}"):
                self.pool.allocate_sequence(max_len)
            return multiple()
        if len(self.model) == SLOTS:
            with pytest.raises(NoFreeSlotError, match=f"all {SLOTS} slots"):
                self.pool.allocate_sequence(max_len)
            return multiple()
        seq_id = self.pool.allocate_sequence(max_len)
        assert seq_id not in self.limit
        self.model[seq_id], self.limit[seq_id] = [[], []], max_len
        return seq_id

    @rule(seq_id=ids, length=st.integers(1, 9), advance=st.integers(0, 9), backwards=st.booleans())
    def append(self, seq_id: int, length: int, advance: int, backwards: bool) -> None:
        held = sum(part.shape[2] for part in self.model[seq_id][0])
        new = []
        for layer in reversed(range(LAYERS)) if backwards else range(LAYERS):
            self.seed += 1
            keys = rows(self.seed, length)
            if held + length > self.limit[seq_id]:
                with pytest.raises(SequenceTooLongError, match=f"allocated {self.limit[seq_id]}"):
                    self.pool.append_kv(seq_id, layer, keys, -keys)
                return
            self.pool.append_kv(seq_id, layer, keys, -keys)
            assert self.pool.get_seq_len(seq_id) == held
            new.append((layer, keys))
        if advance > length:
            with pytest.raises(AdvanceError, match=f"has appended {length}"):
                self.pool.advance_seq_len(seq_id, advance)
            return
        self.pool.advance_seq_len(seq_id, advance)
        for layer, keys in new:
            self.model[seq_id][layer].append(keys[..., :advance, :])

    @rule(seq_id=consumes(ids))
    def release(self, seq_id: int) -> None:
        self.pool.release_sequence(seq_id)
        del self.model[seq_id]
        assert self.pool.get_state(seq_id) is SequenceState.RELEASED
        with pytest.raises(UnknownSequenceError, match=f"sequence {seq_id} has been released"):
            self.pool.get_cache(seq_id, 0)

    def teardown(self) -> None:
        for seq_id, layers in getattr(self, "model", {}).items():
            for layer, parts in enumerate(layers):
                empty = mx.zeros((1, HEADS, 0, DIM), mx.float16)
                expected = mx.concatenate([empty, *parts], axis=2)
                assert_same(self.pool.get_cache(seq_id, layer), (expected, -expected))
                held = expected.shape[2]
                assert self.pool.get_seq_len(seq_id) == held
            full = held == self.limit[seq_id]
            state = SequenceState.FULL if full else SequenceState.ACTIVE
            assert self.pool.get_state(seq_id) is (state if held else SequenceState.EMPTY)


PoolAgainstLists.TestCase.settings = settings(max_examples=examples(30), stateful_step_count=25)
TestPoolAgainstLists = PoolAgainstLists.TestCase


@pytest.mark.parametrize(
    ("k", "v", "message"),
    [
        (mx.zeros((1, 3, 2, DIM), mx.float16), None, r"k has shape \(1, 3, 2, 8\)"),
        (mx.zeros((1, HEADS, 2, DIM), mx.float32), None, "k is mlx.core.float32"),
        (None, mx.zeros((2, HEADS, 2, DIM), mx.float16), r"v has shape \(2, 2, 2, 8\)"),
        (None, mx.zeros((1, HEADS, 3, DIM), mx.float16), "k has 2 tokens and v 3"),
    ],
)
def test_wrong_shapes_and_dtypes_are_named(
    k: mx.array | None, v: mx.array | None, message: str
) -> None:
    manager = pool()
    seq_id = manager.allocate_sequence(10)
    good = rows(1, 2)
    with pytest.raises(AppendError, match=message):
        manager.append_kv(seq_id, 0, good if k is None else k, good if v is None else v)


def test_unknown_layers_and_double_release_are_refused() -> None:
    manager = pool()
    seq_id = manager.allocate_sequence(10)
    with pytest.raises(AppendError, match="layer 2 is not one of the 2 layers"):
        manager.append_kv(seq_id, 2, rows(1, 1), rows(1, 1))
    manager.release_sequence(seq_id)
    with pytest.raises(KVError, match="has been released"):
        manager.release_sequence(seq_id)


def test_a_pool_whose_layers_are_too_large_to_index_is_refused_before_allocating() -> None:
    before = mx.get_active_memory()
    with pytest.raises(ValueError, match="above the limit of 2147483647"):
        KVCacheManager(64, 1, 2**20, 8, 128)
    with pytest.raises(ValueError, match="num_layers must be an integer of at least 1"):
        KVCacheManager(1, 0, 8, 8, 8)
    assert mx.get_active_memory() == before
