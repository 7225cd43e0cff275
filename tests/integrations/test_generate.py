"""generate and stream_generate against mlx-lm's own: the same texts, with less to compute."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm import generate as upstream_generate
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_logits_processors

from kit.examples import some
from kit.versions import BEFORE_0_32
from omlx_cache import BlockStore, PrefixCache
from omlx_cache.integrations.mlx_lm import generate, stream_generate

from .conftest import Open

TEXT = "The quick brown fox jumps over the lazy dog. " * 5


def cached_tokens(cache: PrefixCache) -> int:
    return cache.store.stats().requests.restored_tokens


@pytest.mark.parametrize("kind", some(["dense", "windowed", "hybrid"], "hybrid"))
def test_texts_are_upstreams_and_the_prompt_is_restored(
    kind: str, loaded: dict[str, tuple[Any, Any]], open_store: Open
) -> None:
    model, tokenizer = loaded[kind]
    expected = upstream_generate(model, tokenizer, TEXT, max_tokens=20)
    cache = PrefixCache(model, open_store())
    assert generate(model, tokenizer, TEXT, cache, max_tokens=20) == expected
    assert cached_tokens(cache) == 0
    assert generate(model, tokenizer, TEXT, cache, max_tokens=20) == expected
    assert cached_tokens(cache) == len(TEXT) - 1
    cache = PrefixCache(model, open_store())
    longer = TEXT + expected + " And then?"
    texts = [
        generate(model, tokenizer, longer, cache, max_tokens=20),
        upstream_generate(model, tokenizer, longer, max_tokens=20),
    ]
    assert texts[0] == texts[1]
    assert cached_tokens(cache) >= len(TEXT)


def test_responses_describe_the_whole_prompt(
    loaded: dict[str, tuple[Any, Any]], store: BlockStore
) -> None:
    model, tokenizer = loaded["dense"]
    cache = PrefixCache(model, store)
    generate(model, tokenizer, TEXT, cache, max_tokens=4)
    seen: list[tuple[int, int]] = []
    responses = list(
        stream_generate(
            model,
            tokenizer,
            TEXT + "more",
            cache,
            max_tokens=4,
            prompt_progress_callback=lambda done, total: seen.append((done, total)),
        )
    )
    assert {r.prompt_tokens for r in responses} == {len(TEXT) + 4}
    assert responses[-1].finish_reason is not None
    # The first answer's tokens were stored too; they differ from "more".
    assert seen[0] == (0, len(TEXT) + 4 - cached_tokens(cache))
    assert seen[-1] == (seen[0][1] - 1, seen[0][1])


@pytest.mark.parametrize("start", [0, 100, 235])
def test_quantised_kv(start: int, loaded: dict[str, tuple[Any, Any]], open_store: Open) -> None:
    model, tokenizer = loaded["dense"]
    options = {
        "max_tokens": 20,
        "kv_bits": 8,
        "kv_group_size": 32,
        "quantized_kv_start": start,
        "prefill_step_size": 64,
    }
    expected = upstream_generate(model, tokenizer, TEXT, **options)
    for _ in range(2):
        cache = PrefixCache(model, open_store())
        assert generate(model, tokenizer, TEXT, cache, **options) == expected
    assert cached_tokens(cache) == len(TEXT) - 1
    longer = TEXT + expected + "Why?"
    generate(model, tokenizer, longer, cache, **options)
    assert cached_tokens(cache) >= 2 * len(TEXT) + 19


def test_a_draft_model(loaded: dict[str, tuple[Any, Any]], open_store: Open) -> None:
    (model, tokenizer), (draft, _) = loaded["dense"], loaded["draft"]
    expected = upstream_generate(model, tokenizer, TEXT, max_tokens=20, draft_model=draft)
    for _ in range(2):
        store = open_store()
        cache, draft_cache = PrefixCache(model, store), PrefixCache(draft, store)
        text = generate(
            model,
            tokenizer,
            TEXT,
            cache,
            max_tokens=20,
            draft_model=draft,
            draft_cache=draft_cache,
        )
        assert text == expected
    # Both models' caches of the prompt are there.
    prompt = tokenizer.encode(TEXT)
    assert cache.lookup(prompt).cached_tokens == draft_cache.lookup(prompt).cached_tokens
    assert cache.lookup(prompt).cached_tokens == len(prompt) - 1


def test_logits_processors_see_the_restored_prompt(
    loaded: dict[str, tuple[Any, Any]], store: BlockStore
) -> None:
    model, tokenizer = loaded["dense"]
    prompt = tokenizer.encode(TEXT)
    seen: list[list[int]] = []

    def spy(tokens: mx.array, logits: mx.array) -> mx.array:
        seen.append(tokens.tolist())
        return logits

    cache = PrefixCache(model, store)
    penalty = {"repetition_penalty": 1.5, "repetition_context_size": 60}
    options = {"max_tokens": 12, "logits_processors": make_logits_processors(**penalty)}
    first = generate(model, tokenizer, TEXT, cache, **options)
    assert generate(model, tokenizer, TEXT, cache, **options) == first
    if not BEFORE_0_32:
        # There mlx-lm shows its processors the last token of a prompt only.
        assert first == upstream_generate(model, tokenizer, TEXT, **options)
    generate(model, tokenizer, TEXT, cache, max_tokens=3, logits_processors=[spy])
    assert seen[0] == prompt
    assert seen[1][: len(prompt)] == prompt
    assert len(seen[1]) == len(prompt) + 1


def test_an_answer_that_is_not_read_to_its_end_is_kept(
    loaded: dict[str, tuple[Any, Any]], store: BlockStore
) -> None:
    model, tokenizer = loaded["hybrid"]
    cache = PrefixCache(model, store)
    answer = stream_generate(model, tokenizer, TEXT, cache, max_tokens=50)
    tokens = [next(answer).token for _ in range(5)]
    answer.close()
    prompt = tokenizer.encode(TEXT) + tokens
    assert cache.lookup([*prompt, 1]).cached_tokens == len(prompt)
    assert store.stats().requests.live_sessions == 0


def test_what_tokens_do_not_identify_is_refused(
    loaded: dict[str, tuple[Any, Any]], store: BlockStore
) -> None:
    model, tokenizer = loaded["dense"]
    cache = PrefixCache(model, store)
    with pytest.raises(ValueError, match="input_embeddings"):
        generate(model, tokenizer, TEXT, cache, input_embeddings=mx.zeros((4, 64)))
    with pytest.raises(ValueError, match="draft_cache"):
        generate(model, tokenizer, TEXT, cache, draft_model=model)
    assert make_prompt_cache(model)
