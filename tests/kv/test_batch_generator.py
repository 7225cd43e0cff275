"""mlx-lm's BatchGenerator over our caches: each row generates what it would alone."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import BatchGenerator, generate_step

from kit.zoo import build
from omlx_cache.kv import RotatingKVCache, make_prompt_cache

PROMPTS = [
    [(seed * 31 + at * 7) % 200 for at in range(length)] for seed, length in enumerate((40, 9, 23))
]
TOKENS, WINDOW = 30, 20


def alone(model: Any, prompt: list[int], caches: list[Any]) -> list[int]:
    steps = generate_step(mx.array(prompt), model, max_tokens=TOKENS, prompt_cache=caches)
    return [token for token, _ in steps]


def together(model: Any, caches: list[list[Any]]) -> tuple[list[list[int]], list[list[Any]]]:
    generator = BatchGenerator(model)
    uids = generator.insert(PROMPTS, [TOKENS] * len(PROMPTS), caches)
    tokens: dict[int, list[int]] = {uid: [] for uid in uids}
    final: dict[int, list[Any]] = {}
    while len(final) < len(uids):
        for response in generator.next_generated():
            tokens[response.uid].append(response.token)
            if response.finish_reason is not None:
                final[response.uid] = response.prompt_cache
    generator.close()
    return [tokens[uid] for uid in uids], [final[uid] for uid in uids]


@pytest.mark.parametrize("keep_window", [True, False], ids=["window with keep", "full attention"])
def test_rows_generate_what_they_would_alone(keep_window: bool) -> None:
    model = build("olmo2")
    options = {"max_kv_size": WINDOW if keep_window else None, "max_context": 128}
    expected = [alone(model, prompt, make_prompt_cache(model, **options)) for prompt in PROMPTS]
    got, final = together(model, [make_prompt_cache(model, **options) for _ in PROMPTS])
    assert got == expected
    if keep_window:
        for caches, prompt in zip(final, PROMPTS, strict=True):
            assert all(isinstance(c, RotatingKVCache) and c.keep == 4 for c in caches)
            assert caches[0].offset in (len(prompt) + TOKENS - 1, len(prompt) + TOKENS)
