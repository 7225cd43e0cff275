"""A real mlx-lm model on the pool: alone, in a batch, out of step, from a restored prefix."""

from collections.abc import Sequence

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache as UpstreamKVCache
from mlx_lm.models.llama import Model, ModelArgs

from kit.versions import keys_and_values
from kv.drive import assert_same
from omlx_cache.kv import KVCacheManager

LAYERS, HEADS, DIM, VOCAB = 3, 2, 16, 64


@pytest.fixture(scope="module")
def model() -> Model:
    mx.random.seed(3)
    built = Model(
        ModelArgs(
            model_type="llama",
            hidden_size=64,
            num_hidden_layers=LAYERS,
            intermediate_size=64,
            num_attention_heads=4,
            num_key_value_heads=HEADS,
            head_dim=DIM,
            rms_norm_eps=1e-5,
            vocab_size=VOCAB,
        )
    )
    mx.eval(built.parameters())
    return built


def pool(slots: int = 4) -> KVCacheManager:
    return KVCacheManager(slots, LAYERS, 64, HEADS, DIM, mx.float32)


def prompt(seed: int, length: int) -> list[int]:
    return [(seed * 17 + at * at * 5) % VOCAB for at in range(length)]


def alone(model: Model, tokens: Sequence[int], steps: int) -> tuple[list[int], list[mx.array]]:
    """Greedy tokens and the logits they came from, with mlx-lm's own cache."""
    caches = [UpstreamKVCache() for _ in range(LAYERS)]
    logits = [model(mx.array([list(tokens)]), cache=caches)[:, -1]]
    chosen = [int(logits[-1].argmax())]
    for _ in range(steps):
        logits.append(model(mx.array([[chosen[-1]]]), cache=caches)[:, -1])
        chosen.append(int(logits[-1].argmax()))
    return chosen, logits


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)], ids=["side by side", "scattered"])
def test_a_batch_of_unequal_sequences_decodes_as_each_would_alone(
    model: Model, order: tuple[int, ...], padded: bool
) -> None:
    manager = pool()
    lengths = (5, 21, 12)
    ids = [manager.allocate_sequence(40) for _ in lengths]
    expected = [alone(model, prompt(seed, n), 8) for seed, n in enumerate(lengths)]
    prompts = [prompt(seed, n) for seed, n in enumerate(lengths)]
    if padded:
        inputs = mx.array([tokens + [0] * (max(lengths) - len(tokens)) for tokens in prompts])
        whole = model(inputs, cache=manager.views(*ids))
        found = [whole[row, n - 1] for row, n in enumerate(lengths)]
    else:
        views = map(manager.views, ids)
        found = [model(mx.array([p]), cache=v)[0, -1] for p, v in zip(prompts, views, strict=True)]
    for row, (seq_id, n) in enumerate(zip(ids, lengths, strict=True)):
        manager.truncate(seq_id, n)
        assert int(found[row].argmax()) == expected[row][0][0]
    views = manager.views(*(ids[row] for row in order))
    for at in range(8):
        inputs = mx.array([[expected[row][0][at]] for row in order])
        logits = model(inputs, cache=views)[:, -1]
        for batch_row, row in enumerate(order):
            assert mx.allclose(logits[batch_row], expected[row][1][at + 1][0], atol=1e-4)
    assert [manager.get_seq_len(seq_id) for seq_id in ids] == [n + 8 for n in lengths]


@pytest.mark.parametrize("through", ["manager", "views"])
def test_a_restored_prefix_goes_straight_into_a_slot(model: Model, through: str) -> None:
    caches = [UpstreamKVCache() for _ in range(LAYERS)]
    model(mx.array([prompt(5, 16)]), cache=caches)
    restored = [keys_and_values(cache) for cache in caches]
    manager = pool()
    seq_id = manager.allocate_sequence(40)
    views = manager.views(seq_id)
    if through == "manager":
        manager.load_prefix(seq_id, restored)
    else:
        for view, (keys, values) in reversed(list(zip(views, restored, strict=True))):
            view.load_prefix(keys, values)
    assert manager.get_seq_len(seq_id) == 16
    rest = mx.array([prompt(6, 5)])
    assert_same(model(rest, cache=views), model(rest, cache=caches))


def test_a_sequence_twice_in_a_batch_is_refused() -> None:
    manager = pool()
    seq_id = manager.allocate_sequence(4)
    with pytest.raises(ValueError, match="only once"):
        manager.views(seq_id, seq_id)
