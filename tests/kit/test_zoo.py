"""The zoo itself: every family builds, runs, and is sensitive to what it has read."""

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.cache import make_prompt_cache

from fidelity.mixtures import one_of_each
from kit import zoo

WORKING = [name for name, family in zoo.FAMILIES.items() if not family.broken]
BROKEN = [name for name, family in zoo.FAMILIES.items() if family.broken]

REQUIRED = {
    "llama", "qwen3", "deepseek_v3", "deepseek_v32", "longcat_flash", "longcat_flash_ngram",
    "gemma3_text", "gemma3n", "gpt_oss", "cohere2", "olmo3", "iquestloopcoder", "qwen3_next",
    "qwen3_5", "jamba", "lfm2", "nemotron_h", "kimi_linear", "falcon_h1", "baichuan_m1", "mamba2",
    "rwkv7", "recurrent_gemma", "llama4", "minimax_m3_vl", "deepseek_v41",
}  # fmt: skip


def last_logits(model: nn.Module, tokens: list[int], step: int = 64) -> mx.array:
    """Logits after the last token, in float32, of a cached prefill."""
    cache = make_prompt_cache(model)
    for start in range(0, len(tokens), step):
        logits = model(mx.array([tokens[start : start + step]]), cache=cache)
        mx.eval(logits)
    return logits[0, -1].astype(mx.float32)


def random_tokens(count: int, vocab: int, seed: int = 3) -> list[int]:
    return mx.random.randint(0, vocab, (count,), key=mx.random.key(seed)).tolist()


def test_every_family_that_the_fidelity_matrix_names_works() -> None:
    assert set(WORKING) >= REQUIRED


@pytest.mark.parametrize("name", one_of_each())
def test_an_earlier_token_changes_the_next_logits(name: str) -> None:
    family = zoo.FAMILIES[name]
    model = family.build(0)
    tokens = random_tokens(48, family.vocab)
    changed = [(token + 7) % family.vocab for token in tokens[:24]] + tokens[24:]
    difference = mx.abs(last_logits(model, tokens) - last_logits(model, changed))
    assert mx.max(difference).item() > 1e-3


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_family_still_fails_with_the_recorded_error(name: str) -> None:
    family = zoo.FAMILIES[name]
    kind, _, text = family.broken.partition(": ")
    with pytest.raises(Exception, match=text.split(" (")[0].replace("[", r"\[")) as caught:
        last_logits(family.build(0), random_tokens(8, family.vocab))
    assert type(caught.value).__name__ == kind
