from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from kit import zoo
from omlx_cache import BlockStore, CacheSettings, PrefixCache

TOKENS = [(5 * i * i + i) % 256 for i in range(700)]


@pytest.mark.parametrize("hot_bytes", [1 << 24, 0], ids=["hot", "cold"])
def test_room_to_grow_shows_nothing_of_what_the_memory_held_before(
    tmp_path: Path, hot_bytes: int
) -> None:
    model = zoo.build("qwen3")
    settings = CacheSettings(
        cold_dir=tmp_path,
        hot_bytes=hot_bytes,
        queue_bytes="16MiB",
        min_free_bytes=0,
        socket="off",
        block_size=64,
    )
    with BlockStore(settings) as store:
        cache = PrefixCache(model, store)
        with cache.session(TOKENS) as session:
            for chunk in session.prefill_chunks(256):
                model(mx.array([chunk]), cache=session.prompt_cache)
            session.commit()
        assert store.flush()
        for _ in range(5):
            _leave_rubbish(session.prompt_cache[0].keys.nbytes * 16)
            restored = cache.session(TOKENS, max_new_tokens=2000)
            assert restored.cached_tokens == len(TOKENS) - 1
            for layer in restored.prompt_cache:
                for array in (layer.keys, layer.values):
                    assert array.shape[2] >= len(TOKENS) + 2000
                    assert not np.array(array[:, :, len(TOKENS) :].astype(mx.float32)).any()


def _leave_rubbish(nbytes: int) -> None:
    """Fill and free buffers of the sizes that a restore allocates."""
    rubbish = [mx.ones((size,), dtype=mx.uint8) for size in range(nbytes // 8, nbytes, nbytes // 8)]
    mx.eval(rubbish)
