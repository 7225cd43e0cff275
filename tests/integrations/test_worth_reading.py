"""What mlx-lm's server calls passes by what takes longer to read, and waits for who computes it."""

import threading
from pathlib import Path

import pytest
from mlx_lm.models.cache import make_prompt_cache

from kit.drive import feed, random_tokens, settings
from kit.restoring import PagedDisk
from omlx_cache import BlockStore
from omlx_cache.integrations.mlx_lm import LoadedModel, TieredPromptCache
from omlx_cache.restore.lookup import READS
from omlx_cache_storage.keys import as_tokens

from .conftest import model_of

KEY = ("a model", None, None)
TOKENS = random_tokens(200, 1)


def learned(cache: TieredPromptCache, store: BlockStore, disk: PagedDisk) -> None:
    """Store a prompt, and have the store know what the model takes and that the disk is slow."""
    caches = make_prompt_cache(model_of("qwen3"))
    feed(model_of("qwen3"), caches, TOKENS)
    cache.insert_cache(KEY, TOKENS, caches)
    assert store.flush(60)
    for seed in range(2, 10):
        cache.fetch_nearest_cache(KEY, random_tokens(200, seed))
        assert cache.last is not None
        cache.last.computed(200, 0.01)
    # Of each read one page takes so long.
    disk.hold = lambda position, group: position == 32 and threading.Event().wait(0.5)
    for _ in range(READS):
        store.shrink_hot(0)
        _, rest = cache.fetch_nearest_cache(KEY, [*TOKENS, 1, 2])
        assert rest == [1, 2]
    store.shrink_hot(0)


@pytest.mark.parametrize("worth_reading", ["auto", "off"])
def test_a_fetch_is_a_miss_that_says_why_where_reading_takes_longer(
    worth_reading: str, tmp_path: Path
) -> None:
    disk = PagedDisk()
    given = settings(tmp_path, worth_reading=worth_reading)
    with BlockStore(given, filesystem=disk) as store:
        cache = TieredPromptCache(store, LoadedModel(KEY, model_of("qwen3")))
        learned(cache, store, disk)
        caches, _ = cache.fetch_nearest_cache(KEY, [*TOKENS, 1, 2])
        assert cache.last is not None
        if worth_reading == "off":
            assert (caches is None, cache.last.record.reason) == (False, "new_text")
            return
        assert caches is None
        assert cache.last.record.reason == "slower_than_computing"
        assert store.stats().requests.misses == {"slower_than_computing": 1}


def test_a_request_waits_for_the_one_that_computes_what_is_not_worth_reading(
    tmp_path: Path,
) -> None:
    disk = PagedDisk()
    with BlockStore(settings(tmp_path), filesystem=disk) as store:
        cache = TieredPromptCache(store, LoadedModel(KEY, model_of("qwen3")))
        learned(cache, store, disk)
        prompt = as_tokens([*TOKENS, 1, 2])
        assert cache.awaited(KEY, prompt) is None
        flight = cache.flight(KEY, TOKENS, 0, [])
        assert flight is not None
        assert cache.awaited(KEY, prompt) is not None
        flight.end()
        assert cache.awaited(KEY, prompt) is None
