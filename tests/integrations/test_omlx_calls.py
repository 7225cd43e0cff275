"""What oMLX calls of its prefix cache and reads of it, as a table, and that the adapter has it.

With OMLX_SOURCE, a copy of oMLX, the table is held against its source: `make test-peers ARGS=omlx`.
"""

import ast
import inspect
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from kit import zoo
from omlx_cache import BlockStore
from omlx_cache.integrations.omlx import OmlxPrefixCache, RestoredBlocks

from .conftest import prompt_of
from .test_omlx import BLOCK, Scheduler, Snapshots

SCHEDULER = "omlx/scheduler.py"


class Call(NamedTuple):
    """A method: how many arguments it gets, and which by keyword, in one call or another."""

    arguments: int
    keywords: frozenset[str] = frozenset()


IMAGES = {"extra_keys", "extra_key_token_start", "extra_key_ranges"}
STORE = {"model_cache_config", "boundary_snapshots", "hot_cache_write_back", *IMAGES}
CALLS = {
    # What the scheduler calls while it serves, and between.
    "fetch_cache": Call(2, frozenset(IMAGES)),
    "preload_blocks": Call(1),
    "reconstruct_cache": Call(1, frozenset({"promote_to_hot_cache"})),
    "store_cache": Call(3, frozenset(STORE)),
    "release_cache": Call(1),
    "clear_request_entry": Call(1),
    "clear": Call(0),
    "get_stats": Call(0),
    "get_stats_dict": Call(0),
}
BEFORE_INSTALL = {
    # What the scheduler's constructor asks of its own cache.
    "expected_num_layers",
    "set_cold_restore_callback",
    "set_gdn_checkpoint_loader",
    "set_paged_ssd_cache_manager",
}
SPECPREFILL_CALLS = {
    "restore_exact_prefix": Call(2, frozenset({"promote_to_hot_cache"})),
    "store_exact_prefix": Call(3, frozenset({"model_cache_config"})),
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
SNAPSHOTS = {"__len__", "__bool__", "__contains__", "__getitem__"}
"""What a snapshot provider answers to a cache; it has no `__iter__`, nor `keys`."""
SNAPSHOTS_OWN = {"__init__", "iter_in_memory_extracted", "commit_gdn_checkpoint"}


@pytest.mark.parametrize("name", [*CALLS, *SPECPREFILL_CALLS])
def test_the_adapter_takes_each_call(name: str) -> None:
    call = {**CALLS, **SPECPREFILL_CALLS}[name]
    signature = inspect.signature(getattr(OmlxPrefixCache, name))
    signature.bind(None, *range(call.arguments), **dict.fromkeys(call.keywords))


def test_what_it_returns_has_what_is_read(store: BlockStore) -> None:
    served, prompt = Scheduler(zoo.build("qwen3"), store), prompt_of(200)
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


def test_the_fake_snapshots_have_what_omlx_has_and_no_more() -> None:
    defined = {name for name, part in vars(Snapshots).items() if callable(part)}
    assert defined - {"__init__"} == SNAPSHOTS


@pytest.fixture(scope="module")
def source() -> Path:
    given = os.environ.get("OMLX_SOURCE")
    if not given:
        pytest.skip("OMLX_SOURCE names no copy of oMLX")
    return Path(given)


def test_the_schedulers_source_calls_what_the_table_says(source: Path) -> None:
    called = calls_of(source / SCHEDULER, "block_aware_cache")
    assert {name: call for name, call in called.items() if name not in BEFORE_INSTALL} == CALLS
    assert attributes_of(source / SCHEDULER, "block_aware_cache") == {*CALLS, *BEFORE_INSTALL}


def test_only_the_constructor_makes_the_calls_before_install(source: Path) -> None:
    constructing = {"__init__", "_init_tiered_cache"}
    for function in functions_of(source / SCHEDULER):
        made = set(attributes_in(function, "block_aware_cache")) & BEFORE_INSTALL
        assert not made or function.name in constructing, (function.name, made)


def test_specprefills_source_calls_what_the_table_says(source: Path) -> None:
    path = source / "omlx/specprefill/target.py"
    assert calls_of(path, "exact_prefix_cache") == SPECPREFILL_CALLS


def test_the_schedulers_source_reads_what_the_table_says(source: Path) -> None:
    path = source / SCHEDULER
    assert attributes_of(path, "prefix_stats") == STATISTICS
    assert attributes_of(path, "block_table") == TABLE
    read = {
        node.slice.value
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and name_of(node.value) == "prefix_stats"
    }
    assert read == FIGURES


def test_the_sources_snapshots_have_what_the_table_says(source: Path) -> None:
    (provider,) = (
        node
        for node in ast.walk(parsed(source / SCHEDULER))
        if isinstance(node, ast.ClassDef) and node.name == "_BoundarySnapshotProvider"
    )
    defined = {part.name for part in provider.body if isinstance(part, ast.FunctionDef)}
    assert defined == SNAPSHOTS | SNAPSHOTS_OWN


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def name_of(node: ast.AST) -> str | None:
    """The last name of `self.a.b` or of `b`."""
    return getattr(node, "attr", None) or getattr(node, "id", None)


def functions_of(path: Path) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(parsed(path)) if isinstance(node, ast.FunctionDef))


def attributes_in(tree: ast.AST, receiver: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and name_of(node.value) == receiver:
            yield node.attr


def attributes_of(path: Path, receiver: str) -> set[str]:
    return set(attributes_in(parsed(path), receiver))


def calls_of(path: Path, receiver: str) -> dict[str, Call]:
    """The methods that are called of what bears a name, with all keywords that any call gives."""
    found: dict[str, Call] = {}
    for node in ast.walk(parsed(path)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if name_of(node.func.value) == receiver:
            before = found.get(node.func.attr, Call(0))
            given = {keyword.arg or "**" for keyword in node.keywords}
            found[node.func.attr] = Call(
                max(before.arguments, len(node.args)), before.keywords | given
            )
    return found
