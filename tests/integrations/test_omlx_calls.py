"""What oMLX 0.6.2 calls of its prefix cache and reads of it, and that the adapter has it."""

import inspect
from typing import NamedTuple

import pytest

from kit import zoo
from omlx_cache import BlockStore
from omlx_cache.integrations.omlx import OmlxPrefixCache, RestoredBlocks

from .conftest import prompt_of
from .test_omlx import BLOCK, BlockScheduler


class MethodCall(NamedTuple):
    """A method: how many arguments it gets, and which by keyword, in one call or another."""

    arguments: int
    keywords: frozenset[str] = frozenset()


IMAGES = {"extra_keys", "extra_key_token_start", "extra_key_ranges"}
STORE = {"model_cache_config", "boundary_snapshots", "hot_cache_write_back", *IMAGES}
CALLS = {
    # What the scheduler calls while it serves, and between.
    "fetch_cache": MethodCall(2, frozenset(IMAGES)),
    "preload_blocks": MethodCall(1),
    "reconstruct_cache": MethodCall(1, frozenset({"promote_to_hot_cache"})),
    "store_cache": MethodCall(3, frozenset(STORE)),
    "release_cache": MethodCall(1),
    "clear_request_entry": MethodCall(1),
    "clear": MethodCall(0),
    "get_stats": MethodCall(0),
    "get_stats_dict": MethodCall(0),
}
SPECPREFILL_CALLS = {
    "restore_exact_prefix": MethodCall(2, frozenset({"promote_to_hot_cache"})),
    "store_exact_prefix": MethodCall(3, frozenset({"model_cache_config"})),
}
EXACT = {f"exact_prefix_{name}" for name in ("hits", "misses", "tokens_restored")}
STATISTICS = {
    "hits",
    "misses",
    "evictions",
    "tokens_saved",
    "tokens_matched_total",
    "tokens_requested_total",
    *EXACT,
}
FIGURES = {*EXACT, "exact_prefix_stores", "exact_prefix_store_failures"}
TABLE = {"block_ids", "num_tokens"}


@pytest.mark.parametrize("name", [*CALLS, *SPECPREFILL_CALLS])
def test_the_adapter_takes_each_call(name: str) -> None:
    call = {**CALLS, **SPECPREFILL_CALLS}[name]
    signature = inspect.signature(getattr(OmlxPrefixCache, name))
    signature.bind(None, *range(call.arguments), **dict.fromkeys(call.keywords))


def test_what_it_returns_has_what_is_read(store: BlockStore) -> None:
    served, prompt = BlockScheduler(zoo.build("qwen3"), store), prompt_of(200)
    served.serve("first", prompt)
    adapter = served.block_aware_cache
    table, rest = adapter.fetch_cache("second", prompt)
    assert isinstance(table, RestoredBlocks)
    assert all(hasattr(table, name) for name in TABLE)
    assert table.block_ids == list(range(-(-table.num_tokens // BLOCK)))
    assert rest == prompt[table.num_tokens :]
    assert adapter.preload_blocks(table) == 0
    assert isinstance(adapter.reconstruct_cache(table), list)
    assert adapter.fetch_cache("third", prompt_of(9, seed=1)) == (None, prompt_of(9, seed=1))
    assert all(isinstance(getattr(adapter.get_stats(), name), int) for name in STATISTICS)
    assert adapter.get_stats_dict().keys() >= FIGURES
    assert adapter.clear() == 2
