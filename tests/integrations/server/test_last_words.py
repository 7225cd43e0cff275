"""What the last line of a server's log says of pages that the disk does not have, and why."""

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kit.storage import FaultyDisk, Story, commit, open_store
from omlx_cache import BlockStore
from omlx_cache.integrations.mlx_lm.holdings import LastWords, last_words, unwritten

STORY = Story("leaving")


def ended(store: BlockStore) -> LastWords:
    """End a store as a server does."""
    store.flush(10)
    left = unwritten(store)
    return last_words(store, left, store.close(10))


@pytest.mark.parametrize("policy", ["through", "lazy"])
def test_what_was_written_is_counted_with_its_place(policy: str, tmp_path: Path) -> None:
    store = open_store(tmp_path / "cold", write_policy=policy)
    commit(store, STORY, 1, 2, 3)
    words = ended(store)
    assert words.complete
    assert words.text.startswith(f"Everything is on the disk: {tmp_path / 'cold'} has 3 pages, ")


def test_a_disk_that_failed_is_named_with_what_is_lost(tmp_path: Path) -> None:
    disk = FaultyDisk()
    store = open_store(tmp_path / "cold", disk)
    commit(store, STORY, 1)
    assert store.flush(10)
    disk.fail = {"write": errno.EIO}
    commit(store, STORY, 2, 3)
    words = ended(store)
    assert not words.complete
    assert words.text.startswith("Not everything is on the disk (cold tier: ")
    assert "): 2 pages, " in words.text
    assert " were not written by a failing disk" in words.text
    assert f"; {tmp_path / 'cold'} has 1 page, " in words.text


def test_without_a_disk_nothing_is_on_it(tmp_path: Path) -> None:
    store = open_store(tmp_path / "cold", hot_cache_only=True)
    assert last_words(store, unwritten(store), True).text == (
        "Nothing is on the disk: hot_cache_only."
    )
    commit(store, STORY, 1)
    text = ended(store).text
    assert text.startswith("Nothing is on the disk: hot_cache_only. 1 page, ")
    assert text.endswith(" tokens end with this process.")


def test_a_directory_that_fills_up_counts_what_was_refused(tmp_path: Path) -> None:
    options: dict[str, Any] = {"cold_bytes": 256 * 1024}
    store = open_store(tmp_path / "cold", **options)
    commit(store, STORY, *range(1, 20))
    words = ended(store)
    assert not words.complete
    assert " refused for want of cold_bytes (256 KiB)" in words.text


def test_a_directory_that_could_not_be_had_holds_nothing(tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    cold.mkdir()
    (cold / "letter").write_text("mine")
    cold.chmod(0o777)
    words = ended(open_store(cold))
    assert not words.complete
    assert words.text.startswith("Nothing is on the disk (cold tier: unavailable: ")
    assert words.text.endswith(f": {cold} cannot be used.")


def test_what_was_lost_before_the_end_is_not_said_to_be_on_the_disk(tmp_path: Path) -> None:
    """Neither the disk nor the memory has it any more."""
    store = open_store(tmp_path / "cold")
    commit(store, STORY, 1)
    assert store.flush(10)
    left = unwritten(store)
    assert left.writer is not None
    left = left._replace(writer=replace(left.writer, dropped_pages=2))
    words = last_words(store, left, store.close(10))
    assert not words.complete
    assert words.text.startswith("Perhaps not everything is on the disk: since the start 2 pages ")
