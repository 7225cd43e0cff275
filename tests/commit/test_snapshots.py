"""Snapshots of recurrent state: of their position, and within their budget."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ConcatenateKVCache, make_prompt_cache

from kit import zoo
from kit.drive import digest, feed, prefill, random_tokens, request, run, same
from kit.examples import some
from kit.sessions import Opener
from kit.versions import keys_and_values
from omlx_cache import BlockStore, PrefixCache
from omlx_cache.pages.layout import layout_of, page_arrays
from omlx_cache_storage.page import Page

PROMPT = random_tokens(200, 1)
MORE = random_tokens(30, 2)


@pytest.fixture(params=some(["qwen3_next", "mamba2", "recurrent_gemma", "falcon_h1"], "qwen3_next"))
def model(request: pytest.FixtureRequest) -> Any:
    return zoo.build(request.param)


def snapshots(store: BlockStore) -> dict[int, Page]:
    """The state pages of a store by position."""
    found = {}
    for entry in store.hot.entries():
        if entry.meta.group == "state":
            page = store.hot.get(entry.meta.id)
            assert page is not None
            found[entry.meta.position] = page
    return found


def live_state(model: Any, steps: list[list[int]]) -> dict[str, mx.array]:
    """The arrays of recurrent layers after these steps, on a cache that no session touched."""
    prompt_cache = make_prompt_cache(model)
    for step in steps:
        feed(model, prompt_cache, step)
    return {
        f"{leaf.path}.{name}": array
        for leaf in layout_of(prompt_cache).leaves
        if leaf.group.kind == "state"
        for name, array in leaf.adapter.arrays(leaf.cache).items()
    }


def bits(arrays: dict[str, mx.array]) -> dict[str, str]:
    whole = {name: mx.contiguous(array) for name, array in arrays.items()}
    mx.eval(list(whole.values()))
    return {name: digest([array]) for name, array in whole.items()}


def test_a_snapshot_has_the_state_of_its_position_and_not_the_final_one(
    model: Any, open_store: Opener
) -> None:
    store = open_store(snapshot_stride=64)
    turn = request(model, PrefixCache(model, store), PROMPT, new=5)
    found = snapshots(store)
    assert sorted(found) == [64, 128, 192, 199, 205]
    final = bits(page_arrays(found[205].meta.tensors, found[205].payload))
    for position, page in found.items():
        steps, fed = [], 0
        for step in turn.steps:
            if fed < position:
                steps.append(step)
                fed += len(step)
        assert fed == position
        came = bits(page_arrays(page.meta.tensors, page.payload))
        assert came == bits(live_state(model, steps))
        if position != 205:
            assert all(came[name] != final[name] for name in final)


def test_snapshots_stay_within_their_budget_in_bytes(model: Any, open_store: Opener) -> None:
    store = open_store(snapshot_stride=32)
    request(model, PrefixCache(model, store), PROMPT)
    size = max(page.meta.nbytes for page in snapshots(store).values())
    store = open_store(snapshot_stride=32, hot_cache_only=True)
    store.snapshot_bytes = 3 * size
    cache = PrefixCache(model, store)
    taken = store.reserve(store.hot.limit_bytes - store.hot.usage().nbytes)
    with cache.session(PROMPT) as session:
        turn = prefill(model, session, 32)
        assert 0 < store.stats().snapshots.live_bytes <= 3 * size
        taken.release()
        session.commit()
    stats = store.stats()
    assert stats.snapshots.peak_bytes <= 3 * size
    assert stats.requests.skips["snapshot_budget"] > 0
    again = request(model, cache, PROMPT + MORE)
    assert again.cached in (0, 200)
    assert same(again.logits, run(model, [*(turn.steps if again.cached else []), *again.steps]))


@pytest.mark.parametrize("model", ["llama"], indirect=True)
def test_a_committed_cache_of_another_class_is_not_stored(
    model: Any, store: BlockStore, cache: PrefixCache
) -> None:
    with cache.session(PROMPT) as session:
        prefill(model, session, 32)
        other = ConcatenateKVCache()
        other.state = keys_and_values(session.prompt_cache[0])
        result = session.commit([other, *session.prompt_cache[1:]])
        assert (result.pages, result.skipped) == (0, {"layout_changed": 1})
    assert store.stats().requests.skips["layout_changed"] == 1
