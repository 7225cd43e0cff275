"""What a store says of its directory's budget: how much, who set it, and where it stops itself."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from kit.storage import Story, commit_to_disk, set_budget
from kit.units import MIB
from omlx_cache import BlockStore, CacheSettings
from omlx_cache.control.operations import operations
from omlx_cache.control.serialization import encoded
from omlx_cache.integrations.mlx_lm.holdings import inventory, last_words, unwritten
from omlx_cache_storage.cold.small_files import Budget, read_budget
from omlx_cache_storage.documents import format_size


def _store(directory: Path, **settings: Any) -> BlockStore:
    return BlockStore(
        CacheSettings(cold_dir=directory, hot_bytes=MIB, min_free_bytes=0, socket="off", **settings)
    )


def _asked(store: BlockStore, name: str) -> Any:
    return json.loads(encoded(operations(store)[name]({})))


def test_a_lower_limit_of_its_own_is_shown_beside_the_directorys_budget(tmp_path: Path) -> None:
    with _store(tmp_path, cold_bytes=8 * MIB) as first, _store(tmp_path, cold_bytes=MIB) as second:
        for name in ("ps", "stats"):
            cold = _asked(second, name)["cold"]
            assert (cold["limit_bytes"], cold["set_by"]) == (8 * MIB, "store")
            assert cold["own_limit_bytes"] == MIB
            assert _asked(first, name)["cold"]["own_limit_bytes"] is None
        configured = _asked(second, "config")
        assert configured["settings"]["cold_bytes"]["value"] == MIB
        (note,) = configured["notes"]
        assert f"the budget of {tmp_path} is 8 MiB for all processes" in note
        assert "writes only while the directory holds less than cold_bytes (1 MiB)" in note
        assert _asked(first, "config")["notes"] == []
        assert inventory(second, "").endswith(", disk 8 MiB (1 MiB by this process)")
        assert inventory(first, "").endswith(", disk 8 MiB")


def test_what_another_store_wrote_counts_in_the_figures_of_all(tmp_path: Path) -> None:
    with _store(tmp_path, cold_bytes=8 * MIB) as first, _store(tmp_path) as second:
        commit_to_disk(first, Story("a"), 1, 2, 3)
        for name in ("ps", "stats"):
            assert _asked(second, name)["cold"]["pages"] == 3


def test_nothing_is_evicted_for_a_store_that_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A server whose model cannot be loaded deletes nothing for its budget."""
    with _store(tmp_path, cold_bytes=8 * MIB) as store:
        commit_to_disk(store, Story("a"), *range(1, 30))
        before = store.stats().cold
    small = before.nbytes // 2
    settings = CacheSettings(
        cold_dir=tmp_path, cold_bytes=small, hot_bytes=MIB, min_free_bytes=0, socket="off"
    )
    with BlockStore(settings, waits=True) as store:
        assert store.flush()
        assert store.stats().cold.pages == before.pages
        store.cold.evictor.min_free = 1 << 60
        assert store.cold.keep_free() == 0
    assert read_budget(tmp_path) == Budget(8 * MIB, "store")
    caplog.set_level("INFO")
    with BlockStore(settings, waits=True) as store:
        assert not caplog.messages
        store.wait_no_more()
        cold = store.stats().cold
        assert cold.pages < before.pages
        assert cold.nbytes <= cold.limit_bytes == small
        evicted = f"{before.pages - cold.pages} pages that were used longest ago were evicted"
        assert caplog.messages == [
            f"the budget of {tmp_path} was 8 MiB and is {format_size(small)} for all processes, "
            "set by a store's cold_bytes",
            f"the budget of {tmp_path} is {format_size(small)}: {evicted}",
        ]
    assert read_budget(tmp_path) == Budget(small, "store")


def test_a_changed_budget_is_logged_by_whoever_takes_it_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with _store(tmp_path, cold_bytes=8 * MIB) as store:
        commit_to_disk(store, Story("a"), 1)
        for nbytes in (4 * MIB, 4 * MIB, 1 << 60):
            set_budget(tmp_path, Budget(nbytes, "quota"))
            assert store.writer is not None
            store.writer.settle(10.0)
    said = f"the budget of {tmp_path} was {{}} and is {{}} for all processes, set by "
    said += "`omlx-cache quota`"
    small, large = [line for line in caplog.record_tuples if "for all processes" in line[2]]
    assert small[1:] == (logging.INFO, said.format("8 MiB", "4 MiB"))
    assert large[1] == logging.WARNING
    assert large[2].startswith(said.format("4 MiB", "1024 PiB") + "; the disk is full before: ")


@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_larger_budget_is_offered_the_pages_that_memory_has(
    tmp_path: Path, at_the_end: bool
) -> None:
    with _store(tmp_path, cold_bytes=8 * MIB) as store:
        assert store.writer is not None
        commit_to_disk(store, Story("a"), *range(1, 9))
        set_budget(tmp_path, Budget(0, "quota"))
        store.writer.settle(10.0)
        assert store.stats().cold.pages == 0
        left = unwritten(store)
        assert left.pages == left.evicted_pages == 8
        set_budget(tmp_path, Budget(8 * MIB, "quota"))
        if not at_the_end:
            store.writer.settle(10.0)
            store.writer.tick()
        assert store.flush(10.0)
        assert store.stats().cold.pages == 8
        assert unwritten(store).pages == 0


def test_the_last_words_name_the_budget_that_evicted_pages(tmp_path: Path) -> None:
    with _store(tmp_path, cold_bytes=8 * MIB) as store:
        assert store.writer is not None
        commit_to_disk(store, Story("a"), *range(1, 9))
        set_budget(tmp_path, Budget(0, "quota"))
        store.writer.settle(10.0)
        words = last_words(store, unwritten(store), clean=True)
    assert not words.complete
    assert "8 pages were evicted from the disk for want of cold_bytes (0 B)" in words.text
