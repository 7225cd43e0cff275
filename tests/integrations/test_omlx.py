"""OmlxPrefixCache, driven by a scheduler of this file that calls as oMLX's does.

`tests/peers/check_omlx.py` drives oMLX's own.
"""

import threading
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache, QuantizedKVCache, make_prompt_cache

from kit import zoo
from omlx_cache import BlockStore, CacheSettings, reasons
from omlx_cache.integrations import omlx
from omlx_cache.integrations.host_server import UnusableHost
from omlx_cache.integrations.mlx_lm.prompt_cache import TieredPromptCache
from omlx_cache.integrations.omlx import OmlxPrefixCache, install

from .conftest import Open, prompt_of

FAMILIES = ["qwen3", "qwen3_next", "ministral3"]
BLOCK = 64


class Snapshots:
    """What oMLX hands over: it answers `in` and `[]`, and cannot be iterated. `lost` cannot be read
    back from its disk."""

    def __init__(self, held: dict[int, list[Any]], lost: int | None = None) -> None:
        self._held, self._lost = held, lost
        self.probed: list[int] = []

    def __len__(self) -> int:
        return len(self._held)

    def __bool__(self) -> bool:
        return bool(self._held)

    def __contains__(self, position: int) -> bool:
        self.probed.append(position)
        return position in self._held

    def __getitem__(self, position: int) -> list[Any] | None:
        # Who iterates over this never ends: the real one answers None to what it has not.
        assert position % BLOCK == 0, f"asked for position {position}"
        assert position > 0, "iterated over"
        return None if position == self._lost else self._held.get(position)


class OwnManager:
    """What oMLX has for its own disk."""

    closed = False

    def close(self) -> None:
        self.closed = True


class BlockScheduler:
    """Prefills each request alone, a block at a time, and stores it on a thread when it ends: all
    its tokens, or those up to the last boundary where a layer's state cannot be cut."""

    def __init__(self, model: Any, store: BlockStore | None) -> None:
        self.model = model
        self.config = SimpleNamespace(model_name="a model", paged_cache_block_size=BLOCK)
        self.block_aware_cache: Any = None
        self.paged_cache_manager: Any = object()
        self.paged_ssd_cache_manager: Any = OwnManager()
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
            if position % BLOCK == 0 and any(type(cache) is not KVCache for cache in caches):
                taken = [placeholder() if type(c) is KVCache else layer_of(c) for c in caches]
                mx.eval([layer["state"] for layer in taken])
                snapshots[position] = taken
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
        states, given = [layer_of(c) for c in caches], None
        mx.eval([layer["state"] for layer in states])
        if snapshots:
            # Keys and values of all tokens stand beside the states of the boundary.
            last = max(snapshots)
            pairs = zip(snapshots.pop(last), states, strict=True)
            tokens, states = (
                tokens[:last],
                [taken if taken["state"] else own for taken, own in pairs],
            )
            given = Snapshots(snapshots)
        thread = threading.Thread(
            target=cache.store_cache,
            args=(request_id, tokens, states),
            kwargs={"model_cache_config": object(), "boundary_snapshots": given, **extra},
        )
        thread.start()
        thread.join(60)
        assert not thread.is_alive(), "the store does not end"
        cache.clear_request_entry(request_id)


def placeholder() -> dict[str, Any]:
    """What oMLX's snapshots have for a layer that can be cut."""
    return {"state": (), "meta_state": (), "class_name": "KVCache"}


def layer_of(cache: Any) -> dict[str, Any]:
    """What oMLX extracts of a layer."""
    kind = type(cache).__name__
    if kind == "ArraysCache":
        return {"state": tuple(cache.cache), "meta_state": "", "class_name": kind}
    if kind == "RotatingKVCache":
        keys, values = (cache._temporal_order(side) for side in (cache.keys, cache.values))
        start = max(0, keys.shape[2] - cache.max_size)
        state = keys[..., start:, :], values[..., start:, :]
        meta = (cache.keep, cache.max_size, cache.offset, state[0].shape[2])
        return {"state": state, "meta_state": tuple(map(str, meta)), "class_name": kind}
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
    plain = BlockScheduler(model, None)
    system = prompt_of(150)
    first = [*system, *prompt_of(30, seed=1)]
    told = plain.serve("plain", first)
    second = [*first, *told, *prompt_of(20, seed=2)]
    branch = [*system, *prompt_of(30, seed=3)]
    for again in (False, True):
        served = BlockScheduler(model, open_store(worth_reading="off"))
        assert served.serve("first", first) == told
        # Afterwards the first prompt is there to its last whole block at least.
        assert served.cached_tokens == 0 if not again else served.cached_tokens >= 128
        assert served.serve("second", second) == plain.serve("plain", second)
        assert served.cached_tokens >= len(first) // BLOCK * BLOCK
        assert served.serve("branch", branch) == plain.serve("plain", branch)
        assert served.cached_tokens >= 128


def test_an_image_shares_what_comes_before_it_and_nothing_after(store: BlockStore) -> None:
    served, prompt = BlockScheduler(zoo.build("qwen3"), store), prompt_of(200)
    at = {"extra_key_token_start": 128}
    served.serve("a cat", prompt, extra_keys=("cat",), **at)
    served.serve("a dog", prompt, extra_keys=("dog",), **at)
    assert served.cached_tokens == 128
    served.serve("the cat", prompt, extra_keys=("cat",), **at)
    assert served.cached_tokens == 199
    served.serve("two", prompt, extra_key_ranges=[(64, ("cat",)), (128, ("dog",))])
    assert served.cached_tokens == 64


def test_what_it_is_given_never_raises(store: BlockStore) -> None:
    model = zoo.build("qwen3_next")
    caches = make_prompt_cache(model)
    mx.eval(model(mx.array([prompt_of(100)]), cache=caches))
    states = [layer_of(cache) for cache in caches]
    cache = OmlxPrefixCache(model, store)
    packed = [layer_of(QuantizedKVCache()) for _ in states]
    lacking = {64: [None] * len(states)}
    assert cache.store_cache("id", prompt_of(100), packed) is None
    assert cache.store_cache("id", prompt_of(100), states, boundary_snapshots=lacking) is None
    assert store.stats().requests.skips == {reasons.UNSUPPORTED: 2}
    assert cache.store_cache("id", [1, 2, 3], [{"nothing": 1}]) is None
    assert cache.store_cache("id", [], []) is not None
    assert cache.fetch_cache("id", []) == (None, [])
    assert cache.store_exact_prefix("id", [1, 2], []) is None
    assert cache.restore_exact_prefix("id", [1, 2]) is None


def test_a_scheduler_that_lacks_a_name_keeps_its_own_cache(store: BlockStore) -> None:
    for name in omlx.NEEDED:
        served = BlockScheduler(zoo.build("qwen3"), None)
        delattr(served, name.attribute.split(".")[-1])
        before = dict(vars(served))
        assert install(served, store) is None
        assert vars(served) == before


def test_a_version_that_restores_something_else_keeps_its_own_cache(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omlx_cache.integrations.probe.is_right", lambda *_: False)
    served = BlockScheduler(zoo.build("qwen3"), store)
    assert served.block_aware_cache is None
    monkeypatch.setenv("OMLX_CACHE_REQUIRE", "1")
    with (
        BlockStore(CacheSettings(hot_cache_only=True, socket="off")) as required,
        pytest.raises(UnusableHost, match="was not tested"),
    ):
        install(served, required)


def test_its_own_managers_are_taken_out_and_the_one_of_the_disk_is_closed(
    store: BlockStore,
) -> None:
    served = BlockScheduler(zoo.build("qwen3"), None)
    own = served.paged_ssd_cache_manager
    install(served, store)
    assert isinstance(served.block_aware_cache, OmlxPrefixCache)
    assert served.block_aware_cache.block_size == BLOCK
    assert served.paged_cache_manager is None
    assert served.paged_ssd_cache_manager is None
    assert own.closed
    served.paged_ssd_cache_manager = None
    assert install(served, store), "a scheduler without a disk of its own"


@pytest.mark.parametrize("family", FAMILIES[1:])
def test_snapshots_are_probed_at_boundaries_and_a_lost_one_leaves_the_others(
    family: str, store: BlockStore
) -> None:
    model, prompt = zoo.build(family), prompt_of(4 * BLOCK)
    caches, taken = make_prompt_cache(model), {}
    for start in range(0, len(prompt), BLOCK):
        mx.eval(model(mx.array([prompt[start : start + BLOCK]]), cache=caches))
        taken[start + BLOCK] = [
            placeholder() if type(c) is KVCache else layer_of(c) for c in caches
        ]
        mx.eval([layer["state"] for layer in taken[start + BLOCK]])
    states = [layer_of(c) for c in caches]
    snapshots = Snapshots({at: taken[at] for at in (BLOCK, 2 * BLOCK, 3 * BLOCK)}, lost=2 * BLOCK)
    cache = OmlxPrefixCache(model, store, block_size=BLOCK)
    assert cache.store_cache("id", prompt, states, boundary_snapshots=snapshots) is not None
    assert snapshots.probed == [BLOCK, 2 * BLOCK, 3 * BLOCK]
    found = {at: cache.fetch_cache(str(at), [*prompt[:at], 199, 198])[1] for at in (128, 192, 256)}
    assert {at: at + 2 - len(rest) for at, rest in found.items()} == {128: 64, 192: 192, 256: 256}


def test_under_memory_pressure_what_the_disk_has_leaves_memory(store: BlockStore) -> None:
    model, prompt = zoo.build("qwen3"), prompt_of(200)
    served = BlockScheduler(model, store)
    served.serve("first", prompt)
    assert store.flush()
    cache = served.block_aware_cache
    table, _rest = cache.fetch_cache("second", prompt)
    assert store.stats().hot.pages
    assert cache.reconstruct_cache(table, promote_to_hot_cache=False)
    assert not store.stats().hot.pages
    assert cache.fetch_cache("fifth", prompt)[1] == prompt[-1:], "the disk keeps them"


def test_a_store_that_does_not_end_makes_a_fetch_a_counted_miss(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, prompt = BlockScheduler(zoo.build("qwen3"), store), prompt_of(200)
    served.serve("first", prompt)
    cache = served.block_aware_cache
    table, _rest = cache.fetch_cache("before", prompt)
    inside, go_on = threading.Event(), threading.Event()

    def held(*_: Any) -> None:
        inside.set()
        go_on.wait(60)

    monkeypatch.setattr(TieredPromptCache, "insert_cache", held)
    monkeypatch.setattr(omlx, "STORE_SECONDS", 0.01)
    thread = threading.Thread(target=cache.store_cache, args=("second", [], []))
    thread.start()
    try:
        assert inside.wait(60)
        assert cache.fetch_cache("third", prompt) == (None, prompt)
        assert cache.reconstruct_cache(table, promote_to_hot_cache=False)
        cache.release_cache("third")
    finally:
        go_on.set()
        thread.join(60)
    assert store.stats().requests.misses[reasons.NOT_STORED] == 1
    assert cache.fetch_cache("fourth", prompt)[1] == prompt[-1:]


@pytest.mark.parametrize(("family", "said"), [("qwen3", 59), ("qwen3_next", 0)])
def test_a_request_ends_by_its_name_with_what_is_stored_of_its_answer(
    family: str, said: int, store: BlockStore
) -> None:
    served, prompt = BlockScheduler(zoo.build(family), store), prompt_of(200)
    cache = served.block_aware_cache
    cache.fetch_cache("beside", prompt)
    served.serve("first", prompt, answer=60)
    cache.fetch_cache("aborted", prompt)
    cache.clear_request_entry("aborted")
    cache.clear_request_entry("never asked")
    beside, first, aborted = store.requests.records()
    assert beside.total_seconds is None, "another request's answer ended it"
    assert (first.generated_tokens, aborted.generated_tokens) == (said, 0)
    assert first.total_seconds is not None
    assert aborted.total_seconds is not None
    assert cache.clear() == 1
    assert store.requests.records()[0].total_seconds is not None
