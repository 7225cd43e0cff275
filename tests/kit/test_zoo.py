"""The zoo itself: every family builds, runs, repeats, and is sensitive to what it has read."""

import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
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
PROCESS_PROBE = """
import sys
from kit.test_zoo import fingerprint
print(*(fingerprint(name) for name in sys.argv[1:]))
"""


def last_logits(model: nn.Module, tokens: list[int], step: int = 64) -> mx.array:
    """Logits after the last token, in float32, of a cached prefill."""
    cache = make_prompt_cache(model)
    for start in range(0, len(tokens), step):
        logits = model(mx.array([tokens[start : start + step]]), cache=cache)
        mx.eval(logits)
    return logits[0, -1].astype(mx.float32)


def random_tokens(count: int, vocab: int, seed: int = 3) -> list[int]:
    return mx.random.randint(0, vocab, (count,), key=mx.random.key(seed)).tolist()


def fingerprint(name: str) -> float:
    """Sum of all weights of a family: equal only if every weight is drawn alike."""
    weights = [value.astype(mx.float32).sum() for _, value in sorted_weights(name)]
    return float(mx.stack(weights).sum())


def sorted_weights(name: str) -> list[tuple[str, mx.array]]:
    return sorted(tree_flatten(zoo.build(name).parameters()), key=lambda item: item[0])


def test_every_family_that_the_fidelity_matrix_names_works() -> None:
    assert set(WORKING) >= REQUIRED


@pytest.mark.parametrize("name", one_of_each())
def test_two_builds_agree_and_give_finite_logits(name: str) -> None:
    vocab = zoo.FAMILIES[name].vocab
    tokens = random_tokens(8, vocab)
    first = last_logits(zoo.build(name), tokens)
    assert first.shape == (vocab,)
    assert mx.all(mx.isfinite(first)).item()
    assert mx.array_equal(first, last_logits(zoo.build(name), tokens)).item()


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


def test_another_seed_gives_other_weights() -> None:
    tokens = random_tokens(8, zoo.FAMILIES["llama"].vocab)
    logits = [last_logits(zoo.build("llama", seed), tokens) for seed in (0, 1)]
    assert not mx.array_equal(logits[0], logits[1]).item()


@pytest.mark.nightly
def test_a_new_process_draws_the_same_weights() -> None:
    names = ["llama", "qwen3_next", "rwkv7"]
    output = subprocess.run(
        [sys.executable, "-c", PROCESS_PROBE, *names],
        cwd=Path(zoo.__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert [float(word) for word in output.split()] == [fingerprint(name) for name in names]


def test_building_leaves_the_global_random_state_alone() -> None:
    mx.random.seed(5)
    expected = mx.random.uniform(shape=(4,))
    mx.random.seed(5)
    zoo.build("qwen3_next")
    assert mx.array_equal(mx.random.uniform(shape=(4,)), expected).item()


def test_describe_names_the_children_of_a_list() -> None:
    assert zoo.describe("baichuan_m1") == [
        "CacheList(ArraysCache, RotatingKVCache)",
        "CacheList(ArraysCache, KVCache)",
        "CacheList(ArraysCache, RotatingKVCache)",
    ]
