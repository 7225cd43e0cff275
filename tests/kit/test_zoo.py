"""The zoo itself: every family builds, runs, and is sensitive to what it has read."""

import mlx.core as mx
import pytest

from fidelity.mixtures import one_of_each
from kit import zoo
from kit.drive import random_tokens, run

WORKING = [name for name, family in zoo.FAMILIES.items() if not family.broken]

REQUIRED = {
    "llama", "qwen3", "deepseek_v3", "deepseek_v32", "longcat_flash", "longcat_flash_ngram",
    "gemma3_text", "gemma3n", "gpt_oss", "cohere2", "olmo3", "iquestloopcoder", "qwen3_next",
    "qwen3_5", "jamba", "lfm2", "nemotron_h", "kimi_linear", "falcon_h1", "baichuan_m1", "mamba2",
    "rwkv7", "recurrent_gemma", "llama4", "minimax_m3_vl", "deepseek_v41",
}  # fmt: skip


def test_every_family_that_the_fidelity_matrix_names_works() -> None:
    assert set(WORKING) >= REQUIRED


@pytest.mark.parametrize("name", one_of_each())
def test_an_earlier_token_changes_the_next_logits(name: str) -> None:
    family = zoo.FAMILIES[name]
    model = family.build(0)
    tokens = random_tokens(48, 3, family.vocab)
    changed = [(token + 7) % family.vocab for token in tokens[:24]] + tokens[24:]
    one, other = (run(model, [read])[0][-1].astype(mx.float32) for read in (tokens, changed))
    assert mx.max(mx.abs(one - other)).item() > 1e-3
