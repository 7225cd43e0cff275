"""A large prefix that only the disk has comes back whole: a disk that works is not taken for one
that hangs, however long it reads."""

from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache

from kit import zoo
from kit.drive import settings
from omlx_cache import BlockStore, PrefixCache

LAYERS, HEADS, DIM, STEP = 16, 8, 128, 512
TOKEN_BYTES = 2 * LAYERS * HEADS * DIM * 2


def _keys(position: int, count: int) -> mx.array:
    """Keys and values that say where they belong."""
    at = mx.arange(position, position + count) % 251
    return mx.broadcast_to(at[None, None, :, None], (1, HEADS, count, DIM)).astype(mx.bfloat16)


@pytest.mark.parametrize(
    "nbytes",
    [1 << 27, pytest.param(1 << 32, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])],
)
def test_all_of_it_is_restored(tmp_path: Path, nbytes: int) -> None:
    tokens = [token % 251 for token in range(nbytes // TOKEN_BYTES)]
    options = {"block_size": 256, "hot_bytes": "64MiB", "cold_bytes": 2 * nbytes}
    model = zoo.build("llama")
    make = lambda: [KVCache() for _ in range(LAYERS)]  # noqa: E731
    with BlockStore(settings(tmp_path, **options, commit_wait_seconds=86400)) as store:
        with PrefixCache(model, store, make_cache=make).session(tokens) as session:
            for start in range(0, len(tokens), STEP):
                for cache in session.prompt_cache:
                    cache.update_and_fetch(*(_keys(start, STEP),) * 2)
                session.evaluate()
                session.checkpoint(start + STEP)
            session.commit(release=True)
        assert store.flush(600)
    with (
        BlockStore(settings(tmp_path, **options)) as store,
        PrefixCache(model, store, make_cache=make).session([*tokens, 1]) as session,
    ):
        assert (session.cached_tokens, session.miss_reason) == (len(tokens), None)
        wanted = _keys(0, len(tokens))
        for cache in session.prompt_cache:
            assert mx.array_equal(cache.keys[..., : len(tokens), :], wanted).item()
