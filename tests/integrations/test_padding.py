"""Models whose states take a batch's padding for tokens: their prompts are computed alone."""

from types import SimpleNamespace

import mlx.core as mx
import mlx_lm
import pytest
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import make_prompt_cache

from kit.versions import LOCKED
from omlx_cache import BlockStore, PrefixCache
from omlx_cache.integrations.batch import CachedBatchGenerator
from omlx_cache.integrations.rows import heeds_padding, refuse_batches

from .conftest import model_of, prompt_of

LENGTHS = (150, 70, 113)


@pytest.mark.parametrize(
    ("family", "heeds"),
    [
        ("qwen3", True),
        ("qwen3_next", True),
        ("lfm2", True),
        ("mamba2", mlx_lm.__version__ == LOCKED),
        ("jamba", False),
        ("mamba", False),
        ("rwkv7", False),
    ],
)
def test_it_is_told_whether_a_model_heeds_padding(family: str, heeds: bool) -> None:
    model = model_of(family)
    assert heeds_padding(model, lambda: make_prompt_cache(model)) is heeds


@pytest.mark.parametrize("family", ["jamba", "rwkv7"])
def test_what_is_restored_after_a_batch_is_what_a_request_alone_holds(
    family: str, store: BlockStore
) -> None:
    model = model_of(family)
    cache = PrefixCache(model, store)
    batch = CachedBatchGenerator(BatchGenerator(model, prefill_step_size=64), cache)
    prompts = [prompt_of(length, seed=length) for length in LENGTHS]
    for prompt in prompts:
        batch.submit(prompt, max_tokens=4)
    while len(batch):
        batch.next()
    assert store.stats().requests.skips == {}
    assert store.stats().requests.live_sessions == 0
    for prompt in prompts:
        whole = make_prompt_cache(model)
        expected = model(mx.array([prompt]), cache=whole)[0, -1]
        with cache.session(prompt) as session:
            assert session.cached_tokens > 0
            rest = mx.array([prompt[session.cached_tokens :]])
            logits = model(rest, cache=session.prompt_cache)[0, -1]
            mx.eval(logits, expected)
        assert mx.abs(logits - expected).max() <= 0.05 * mx.abs(expected).max()


@pytest.mark.parametrize(("family", "batches"), [("qwen3_next", True), ("mamba", False)])
def test_the_server_computes_such_a_models_requests_one_at_a_time(
    family: str, batches: bool
) -> None:
    provider = SimpleNamespace(is_batchable=True, model=model_of(family))
    refuse_batches(provider)
    assert provider.is_batchable is batches
