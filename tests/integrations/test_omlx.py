"""OmlxPrefixCache, driven by a scheduler of this file that calls as oMLX's does.

oMLX itself runs on macOS only, and is not run here: see `docs/omlx.md`.
"""

import threading
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, KVCache, QuantizedKVCache, make_prompt_cache

from kit import zoo
from omlx_cache import BlockStore, reasons
from omlx_cache.integrations.omlx import OmlxPrefixCache, install
from omlx_cache.integrations.omlx.keyed import keyed

from .conftest import Open, prompt_of

FAMILIES = ["qwen3", "qwen3_next", "ministral3"]
BLOCK = 64


class Scheduler:
    """Prefills each request alone, a block at a time, and stores it on a thread when it ends."""

    def __init__(self, model: Any, store: BlockStore | None) -> None:
        self.model = model
        self.config = SimpleNamespace(model_name="a model", paged_cache_block_size=BLOCK)
        self.block_aware_cache: Any = None
        self.paged_cache_manager = self.paged_ssd_cache_manager = object()
        if store is not None:
            install(self, store)
        self.cached_tokens = 0

    def serve(self, request_id: str, prompt: list[int], answer: int = 6, **extra: Any) -> list[int]:
        """Return the tokens that are generated greedily; notes how many were restored."""
        caches, rest, snapshots = self._add(request_id, prompt, extra), prompt, {}
        rest = prompt[self.cached_tokens :]
        position = self.cached_tokens
        while len(rest) > 1:
            step = min(len(rest) - 1, BLOCK - position % BLOCK)
            mx.eval(self.model(mx.array([rest[:step]]), cache=caches))
            rest, position = rest[step:], position + step
            if position % BLOCK == 0:
                snapshots[position] = self._snapshot(caches)
        said: list[int] = []
        for _ in range(answer):
            logits = self.model(mx.array([rest]), cache=caches)
            rest = [int(mx.argmax(logits[0, -1]).item())]
            said += rest
        self._finish(request_id, [*prompt, *said[:-1]], caches, snapshots, extra)
        return said

    def _add(self, request_id: str, prompt: list[int], extra: dict[str, Any]) -> list[Any]:
        self.cached_tokens = 0
        if self.block_aware_cache is not None:
            table, remaining = self.block_aware_cache.fetch_cache(request_id, prompt, **extra)
            if table and table.num_tokens > 0:
                self.block_aware_cache.preload_blocks(table)
                restored = self.block_aware_cache.reconstruct_cache(table)
                assert restored, "what was found is there"
                self.cached_tokens = table.num_tokens
                assert remaining == prompt[self.cached_tokens :] != []
                return list(restored)
        return make_prompt_cache(self.model)

    def _snapshot(self, caches: list[Any]) -> list[Any]:
        return [None if type(c) is KVCache else layer_of(c) for c in caches]

    def _finish(
        self,
        request_id: str,
        tokens: list[int],
        caches: list[Any],
        snapshots: dict[int, list[Any]],
        extra: dict[str, Any],
    ) -> None:
        cache = self.block_aware_cache
        if cache is None:
            return
        states = [layer_of(c) for c in caches]
        mx.eval([layer["state"] for layer in states])
        thread = threading.Thread(
            target=cache.store_cache,
            args=(request_id, tokens, states),
            kwargs={"model_cache_config": object(), "boundary_snapshots": snapshots, **extra},
        )
        thread.start()
        thread.join(60)
        cache.clear_request_entry(request_id)


def layer_of(cache: Any) -> dict[str, Any]:
    """What oMLX extracts of a layer."""
    kind = type(cache).__name__
    if kind == "ArraysCache":
        return {"state": list(cache.cache), "meta_state": (), "class_name": kind}
    if kind == "RotatingKVCache":
        meta = tuple(map(str, (cache.keep, cache.max_size, cache.offset, cache._idx)))
        return {"state": (cache.keys, cache.values), "meta_state": meta, "class_name": kind}
    if kind == "KVCache":
        state = tuple(side[..., : cache.offset, :] for side in (cache.keys, cache.values))
        return {"state": state, "meta_state": (str(cache.offset),), "class_name": kind}
    return {"state": (), "meta_state": (), "class_name": kind}


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Any:
    return zoo.build(request.param)


def test_turns_branches_and_a_restart_give_the_tokens_of_no_cache(
    model: Any, open_store: Open
) -> None:
    plain = Scheduler(model, None)
    system = prompt_of(150)
    first = [*system, *prompt_of(30, seed=1)]
    told = plain.serve("plain", first)
    second = [*first, *told, *prompt_of(20, seed=2)]
    branch = [*system, *prompt_of(30, seed=3)]
    for again in (False, True):
        served = Scheduler(model, open_store(worth_reading="off"))
        assert served.serve("first", first) == told
        # Afterwards the first prompt is there to its last whole block at least.
        assert served.cached_tokens == 0 if not again else served.cached_tokens >= 128
        assert served.serve("second", second) == plain.serve("plain", second)
        assert served.cached_tokens >= len(first)
        assert served.serve("branch", branch) == plain.serve("plain", branch)
        assert served.cached_tokens >= 128


def test_an_exact_prompt_is_restored_to_no_more_than_all_but_its_last_token(
    model: Any, store: BlockStore
) -> None:
    served, prompt = Scheduler(model, store), prompt_of(129)
    said = served.serve("first", prompt)
    assert served.serve("again", prompt) == said
    assert served.cached_tokens == 128


def test_an_image_shares_what_comes_before_it_and_nothing_after(store: BlockStore) -> None:
    served, prompt = Scheduler(zoo.build("qwen3"), store), prompt_of(200)
    at = {"extra_key_token_start": 128}
    served.serve("a cat", prompt, extra_keys=("cat",), **at)
    served.serve("a dog", prompt, extra_keys=("dog",), **at)
    assert served.cached_tokens == 128
    served.serve("the cat", prompt, extra_keys=("cat",), **at)
    assert served.cached_tokens == 199
    served.serve("two", prompt, extra_key_ranges=[(64, ("cat",)), (128, ("dog",))])
    assert served.cached_tokens == 64


def test_extra_keys_without_a_place_separate_whole_prompts() -> None:
    tokens = prompt_of(10)
    assert keyed(tokens) == tokens
    assert keyed(tokens, ("a",)) != keyed(tokens, ("b",))
    assert keyed(tokens, ("a",))[0] < 0
    assert keyed([], ("a",)) == []


def test_an_unknown_class_is_counted_and_not_stored(store: BlockStore) -> None:
    cache = OmlxPrefixCache(zoo.build("qwen3"), store)
    packed = [layer_of(QuantizedKVCache()), layer_of(QuantizedKVCache())]
    assert cache.store_cache("packed", prompt_of(100), packed) is None
    assert store.stats().requests.skips == {reasons.UNSUPPORTED: 1}


def test_a_snapshot_without_what_cannot_be_cut_stores_nothing(store: BlockStore) -> None:
    model = zoo.build("qwen3_next")
    caches = make_prompt_cache(model)
    mx.eval(model(mx.array([prompt_of(100)]), cache=caches))
    assert any(type(cache) is ArraysCache for cache in caches)
    cache, states = OmlxPrefixCache(model, store), [layer_of(cache) for cache in caches]
    snapshots = {64: [None] * len(states)}
    assert cache.store_cache("id", prompt_of(100), states, boundary_snapshots=snapshots) is None


def test_what_it_is_given_never_raises(store: BlockStore) -> None:
    cache = OmlxPrefixCache(zoo.build("qwen3"), store)
    assert cache.store_cache("id", [1, 2, 3], [{"nothing": 1}]) is None
    assert cache.store_cache("id", [], []) is not None
    assert cache.fetch_cache("id", []) == (None, [])
    assert cache.get_stats()["hot"]


def test_a_request_that_is_aborted_leaves_nothing_behind(store: BlockStore) -> None:
    served, prompt = Scheduler(zoo.build("qwen3"), store), prompt_of(100)
    served.serve("first", prompt)
    cache = served.block_aware_cache
    table, _rest = cache.fetch_cache("second", [*prompt, 1])
    assert cache.get_block_table("second") is table
    cache.release_cache("second")
    assert cache.get_block_table("second") is None
    cache.fetch_cache("third", [*prompt, 1])
    assert cache.clear() == 1
    assert cache.fetch_cache("fourth", [*prompt, 1])[1] == [1], "pages stay"


def test_its_own_managers_are_taken_out(store: BlockStore) -> None:
    served = Scheduler(zoo.build("qwen3"), store)
    assert isinstance(served.block_aware_cache, OmlxPrefixCache)
    assert served.block_aware_cache.block_size == BLOCK
    assert served.paged_cache_manager is None
    assert served.paged_ssd_cache_manager is None
