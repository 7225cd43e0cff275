"""Looking up moves nothing; prefetching moves cold pages into the hot tier, and can be stopped."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from kit import zoo
from kit.drive import chunks, random_tokens, request, run, same
from omlx_cache import BlockStore, PrefixCache

PROMPT = random_tokens(150, 1)
MORE = random_tokens(20, 2)

Opener = Callable[..., BlockStore]


@pytest.fixture
def model() -> Any:
    return zoo.build("qwen3")


@pytest.fixture
def cold(model: Any, open_store: Opener) -> PrefixCache:
    """A cache whose pages are on the disk only."""
    request(model, PrefixCache(model, open_store()), PROMPT)
    return PrefixCache(model, open_store())


def picture(store: BlockStore) -> Any:
    return (
        store.hot.entries(),
        sorted((entry.page, entry.used_ns) for entry in store.cold.entries()),
        store.stats().requests,
    )


def test_lookup_finds_cold_pages_and_moves_none(cold: PrefixCache) -> None:
    before = picture(cold.store)
    found = cold.lookup(PROMPT)
    assert found.cached_tokens == 149
    assert {page.tier for page in found.pages} == {"cold"}
    assert picture(cold.store) == before


def test_lookup_of_an_unknown_prompt_says_why(cold: PrefixCache) -> None:
    found = cold.lookup(random_tokens(100, 77))
    assert (found.cached_tokens, found.miss_reason, found.pages) == (0, "absent", ())
    assert cold.lookup(PROMPT, salt="other").cached_tokens == 0
    assert cold.lookup([]).cached_tokens == 0


def test_a_cancelled_prefetch_ends_and_the_prompt_is_still_restored(
    cold: PrefixCache, model: Any
) -> None:
    handle = cold.prefetch(PROMPT + MORE)
    handle.cancel()
    assert handle.wait(30)
    handle.cancel()
    assert request(model, cold, PROMPT + MORE, commit=False).cached == 150
    cold.store.hot.check_integrity()


def test_a_prefetch_of_nothing_has_ended_already(cold: PrefixCache, model: Any) -> None:
    assert cold.prefetch(random_tokens(60, 5)).wait(0)
    assert cold.prefetch([]).wait(0)
    handle = cold.prefetch(PROMPT, salt="other")
    assert (handle.wait(0), handle.pages) == (True, 0)


def test_a_prefetch_stops_at_a_page_that_is_corrupt(cold: PrefixCache, model: Any) -> None:
    for path in cold.store.settings.cold_dir.rglob("*-96-32-paged.safetensors"):
        raw = bytearray(path.read_bytes())
        raw[-1] ^= 1
        path.write_bytes(raw)
    assert cold.prefetch(PROMPT).wait(30)
    turn = request(model, cold, PROMPT + MORE, commit=False)
    assert turn.cached == 64
    assert same(turn.logits, run(model, [*chunks(PROMPT[:64], 32), *turn.steps]))


def test_clear_deletes_all_of_a_tenant_and_what_earlier_processes_left(
    model: Any, open_store: Callable[..., BlockStore]
) -> None:
    cache = PrefixCache(model, open_store())
    for extra in (None, {"rope": "a"}, {"rope": "b"}):
        request(model, cache, PROMPT, salt="a", extra=extra)
    request(model, cache, PROMPT, salt="b")
    assert cache.store.flush(30)
    again = PrefixCache(model, open_store())
    assert again.clear(salt="a", extra={"rope": "a"}) == 5
    assert again.clear(salt="a") == 10
    assert again.lookup(PROMPT, salt="a").cached_tokens == 0
    assert again.lookup(PROMPT, salt="a", extra={"rope": "b"}).cached_tokens == 0
    assert again.lookup(PROMPT, salt="b").cached_tokens == 149


@pytest.mark.parametrize("room", [None, 1.5, "many", -3, sys.maxsize])
def test_any_wish_for_room_restores_and_takes_no_more_than_the_most(
    model: Any, cache: PrefixCache, room: Any
) -> None:
    request(model, cache, PROMPT)
    with cache.session(PROMPT, max_new_tokens=room) as session:
        assert session.cached_tokens == 149
        assert session.prompt_cache[0].keys.shape[2] <= 149 + 65_536 + 512


def test_an_adapter_path_that_is_not_there_is_refused(model: Any, store: BlockStore) -> None:
    with pytest.raises(FileNotFoundError, match="adapter"):
        PrefixCache(model, store, adapter="/nowhere/adapter")


def test_settings_of_another_type_are_refused_with_the_way_to_write_them() -> None:
    wrong: Any = {"hot_bytes": 1}
    with pytest.raises(TypeError, match="CacheSettings"):
        BlockStore(wrong)
