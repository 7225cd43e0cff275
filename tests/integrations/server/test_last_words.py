"""What the last line of a server's log says of pages that the disk does not have, and why."""

import errno
from pathlib import Path

import pytest

from kit.storage import FaultyDisk, Story, commit, commit_to_disk, open_store
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
    commit_to_disk(store, STORY, 1)
    disk.fail = {"write": errno.EIO}
    commit(store, STORY, 2, 3)
    words = ended(store)
    assert not words.complete
    assert words.text.startswith("Not everything is on the disk (cold tier: ")
    assert "): 2 pages, " in words.text
    assert " were refused by a full or failing disk" in words.text
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


def test_a_directory_that_could_not_be_had_holds_nothing(tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    cold.mkdir()
    (cold / "letter").write_text("mine")
    cold.chmod(0o777)
    words = ended(open_store(cold))
    assert not words.complete
    assert words.text.startswith("Nothing is on the disk (cold tier: unavailable: ")
    assert words.text.endswith(f": {cold} cannot be used.")
