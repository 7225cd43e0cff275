"""What mlx-lm's server stores along the way shares its place with what it stores at the end."""

from pathlib import Path
from typing import Any

import pytest
from mlx_lm.models.cache import make_prompt_cache

from kit import zoo
from kit.drive import feed, random_tokens, settings
from omlx_cache import BlockStore, PrefixCache
from omlx_cache.integrations.mlx_lm import LoadedModel, TieredPromptCache
from omlx_cache_storage.keys import as_tokens

KEY = ("a model", None, None)
LENGTH, STEP = 1600, 64


def serve(cache: TieredPromptCache, model: Any, tokens: list[int]) -> None:
    """Compute a sequence as the server does: followed while it grows, inserted at its end."""
    live, rest = cache.fetch_nearest_cache(KEY, tokens)
    start = len(tokens) - len(rest)
    live = make_prompt_cache(model) if live is None else live
    (following,) = cache.followers(KEY, tokens[:start], start)
    for at in range(start, len(tokens), STEP):
        feed(model, live, tokens[at : at + STEP])
        following.caches(tokens[: at + STEP], live, keep=False)
    following.close()
    cache.insert_cache(KEY, tokens, live)


def share(store: BlockStore, model: Any, tokens: list[int]) -> float:
    """Return the bytes on the disk that some restore uses, as a share of all."""
    scope = PrefixCache(model, store).scope()
    chain = scope.chain(as_tokens([*tokens, 1]))
    position = scope.find(chain, len(tokens)).position
    useful = {chain.key(end) for end in range(1, position + 1)}
    assert store.cold is not None
    held = [(entry.page.key in useful, entry.info.nbytes) for entry in store.cold.listing()]
    return sum(nbytes for used, nbytes in held if used) / sum(nbytes for _, nbytes in held)


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["gemma3_text", "qwen3_next"])
def test_of_served_chats_of_many_disks_four_fifths_of_a_disk_are_restorable(
    tmp_path: Path, family: str
) -> None:
    model = zoo.build(family)
    fields = {"snapshot_stride": 2 * STEP, "hot_bytes": "512KiB", "queue_bytes": "128KiB"}
    fields |= {"cold_bytes": "1MiB", "block_size": STEP}
    chats: list[list[int]] = [random_tokens(STEP, 0), random_tokens(STEP, 0)]
    with BlockStore(settings(tmp_path, **fields)) as store:
        cache = TieredPromptCache(store, LoadedModel(KEY, model))
        for turn in range(4):
            for number, tokens in enumerate(chats):
                tokens += random_tokens(600, 10 * turn + number)
                serve(cache, model, tokens)
        assert store.flush(60)
    with BlockStore(settings(tmp_path, **fields)) as store:
        assert share(store, model, chats[-1]) >= 0.8


def test_only_the_sequence_that_was_followed_takes_what_was_stored_along(tmp_path: Path) -> None:
    model, tokens = zoo.build("llama"), random_tokens(160, 1)
    with BlockStore(settings(tmp_path)) as store:
        cache = TieredPromptCache(store, LoadedModel(KEY, model))
        (following,) = cache.followers(KEY, tokens[:0], 0)
        live = make_prompt_cache(model)
        feed(model, live, tokens)
        following.caches(tokens, live, keep=False)
        scope = PrefixCache(model, store).scope()
        same = scope.chain(as_tokens([*tokens, 7, 8]))
        other = scope.chain(as_tokens([9, *tokens]))
        stored = following.stored_of(same)
        assert len(stored) == 5
        following.close()
        assert following.stored_of(same) == stored
        assert following.stored_of(other) == frozenset()
