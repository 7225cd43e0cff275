"""The write policies through real sessions: one prompt is not yet a second touch."""

from pathlib import Path

import mlx.core as mx
import pytest

from kit import zoo
from kit.storage import files_in, open_store
from omlx_cache import PrefixCache


def _serve(cache: PrefixCache, model: object, tokens: list[int]) -> int:
    with cache.session(tokens) as session:
        for chunk in session.prefill_chunks(step=64):
            mx.eval(model(mx.array([chunk]), cache=session.prompt_cache))  # type: ignore[operator]
        session.commit()
        return session.cached_tokens


@pytest.mark.parametrize(("policy", "after_one"), [("second_touch", False), ("through", True)])
def test_a_prompt_that_comes_twice_is_written_by_either_policy(
    tmp_path: Path, policy: str, after_one: bool
) -> None:
    model = zoo.build("qwen3")
    tokens = [n * 7 % 100 for n in range(100)]
    with open_store(tmp_path, write_policy=policy, block_size=32) as store:
        cache = PrefixCache(model, store)
        assert _serve(cache, model, tokens) == 0
        assert store.flush()
        assert bool(files_in(tmp_path)) is after_one
        assert _serve(cache, model, tokens) == 99
        assert store.flush()
        assert len(files_in(tmp_path)) >= 3
