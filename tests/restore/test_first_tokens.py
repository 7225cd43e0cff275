"""Rings that keep their first tokens come back like any other: under pressure, and elsewhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.models.cache import KVCache, RotatingKVCache

from kit import zoo
from kit.drive import FedTurn, chunks, feed, random_tokens, request, same, settings
from kit.examples import some
from kit.remote.engines import PATIENT_SECONDS
from kit.remote.places import STORES
from omlx_cache import BlockStore, PrefixCache

BLOCK, WINDOW, STEP = 16, 96, 512
OLDEST, *PROMPTS = 370, 300, 340, 380
LONG = 1300
"""More blocks than the end of a chain for which a remote store is asked first."""
MODEL = zoo.build("llama")

LAYERS: dict[str, Callable[[int], list[Any]]] = {
    "rings": lambda keep: [RotatingKVCache(WINDOW, keep) for _ in MODEL.layers],
    "mixed": lambda keep: [KVCache(), *(RotatingKVCache(WINDOW, keep) for _ in MODEL.layers[1:])],
}

pytestmark = [
    pytest.mark.parametrize("keep", some([0, 4, 64], 4)),
    pytest.mark.parametrize("layers", LAYERS),
]


class Prompts:
    """Prompts of several lengths, asked of one kind of cache."""

    def __init__(self, layers: str, keep: int) -> None:
        self._make = lambda: LAYERS[layers](keep)

    def ask(self, store: BlockStore, *counts: int, new: int = 0) -> None:
        for count in counts:
            self._ask(store, count, new=new)

    def missing(self, store: BlockStore, *counts: int) -> dict[int, int]:
        """Return how many tokens of each prompt are not restored; those that are have the live
        cache's bits."""
        short = {}
        for count in counts:
            turn = self._ask(store, count, commit=False)
            if turn.cached != count - 1:
                short[count] = count - 1 - turn.cached
            live = self._make()
            for chunk in chunks(random_tokens(count, count)[: turn.cached], STEP):
                feed(MODEL, live, chunk)
            assert same(turn.logits, [feed(MODEL, live, step) for step in turn.steps])
        return short

    def _ask(self, store: BlockStore, count: int, **options: Any) -> FedTurn:
        cache = PrefixCache(MODEL, store, make_cache=self._make)
        return request(MODEL, cache, random_tokens(count, count), step=STEP, **options)


@pytest.fixture
def prompts(layers: str, keep: int) -> Prompts:
    return Prompts(layers, keep)


def test_a_full_memory_keeps_the_latest_prompts(prompts: Prompts, tmp_path: Path) -> None:
    options = {"hot_cache_only": True, "block_size": BLOCK}
    with BlockStore(settings(tmp_path, **options)) as store:
        prompts.ask(store, PROMPTS[-1])
        nbytes = store.stats().hot.nbytes
    with BlockStore(settings(tmp_path, **options, hot_bytes=nbytes * 13 // 4)) as store:
        prompts.ask(store, OLDEST, *PROMPTS)
        assert store.stats().hot.evicted_pages
        assert prompts.missing(store, *PROMPTS) == {}


def test_a_prompt_outlives_its_answer(prompts: Prompts, tmp_path: Path) -> None:
    with BlockStore(settings(tmp_path, hot_cache_only=True, block_size=BLOCK)) as store:
        prompts.ask(store, PROMPTS[0], new=2 * BLOCK)
        store.shrink_hot(store.stats().hot.nbytes * 15 // 16)
        assert prompts.missing(store, PROMPTS[0]) == {}


def test_a_conversation_that_is_over_leaves_the_first_tokens_to_others(
    keep: int, layers: str, tmp_path: Path
) -> None:
    over, other = ([*random_tokens(4, 1), *random_tokens(300, seed)] for seed in (2, 3))
    with BlockStore(settings(tmp_path, hot_cache_only=True, block_size=BLOCK)) as store:
        cache = PrefixCache(MODEL, store, make_cache=lambda: LAYERS[layers](keep))
        for tokens in (random_tokens(300, 4), over, other):
            request(MODEL, cache, tokens, step=STEP)
        cache.retire(over)
        store.shrink_hot(store.stats().hot.nbytes * 9 // 16)
        assert request(MODEL, cache, other, commit=False).cached == len(other) - 1


def test_a_full_disk_keeps_the_latest_prompts(prompts: Prompts, tmp_path: Path) -> None:
    options: dict[str, Any] = {"block_size": BLOCK, "cold_bytes": "64MiB"}
    with BlockStore(settings(tmp_path / "one", **options)) as store:
        before = store.stats().cold
        prompts.ask(store, PROMPTS[-1])
        assert store.flush(60)
        usage = store.stats().cold
    options["cold_bytes"] = before.nbytes + (usage.nbytes - before.nbytes) * 13 // 4
    with BlockStore(settings(tmp_path / "full", **options)) as store:
        prompts.ask(store, OLDEST, *PROMPTS)
        assert store.flush(60)
        usage = store.stats().cold
        assert usage.evicted_pages
    with BlockStore(settings(tmp_path / "full", **options)) as store:
        assert prompts.missing(store, *PROMPTS) == {}


@pytest.mark.parametrize("name", some(["redis", "directory"], "directory"))
def test_another_machine_restores_them(name: str, prompts: Prompts, tmp_path: Path) -> None:
    with STORES[name](tmp_path) as url:
        options = {
            "block_size": BLOCK,
            "remote": url,
            "remote_secret": "a secret that both machines have",
            "remote_lookup_seconds": PATIENT_SECONDS,
            "worth_reading": "off",
        }
        with BlockStore(settings(tmp_path / "a", **options)) as store:
            prompts.ask(store, LONG)
            assert store.uploads.flush(60)
        with BlockStore(settings(tmp_path / "b", **options)) as store:
            assert prompts.missing(store, LONG) == {}
            usage = store.stats()
    assert (usage.remote.state, usage.remote.errors) == ("ok", {})
    assert usage.requests.restored_remote_tokens
