"""A store that looks up nothing while others write more than a ledger tells of: its next look-up
finds all of it. A disk that does not answer keeps it for a moment, once."""

import threading
import time
from pathlib import Path

import pytest

from kit.storage import Story, commit_to_disk, open_store
from omlx_cache import BlockStore
from omlx_cache_storage import tiers

PAGES = range(1, 301)
LIMIT = 2**24
STORY = Story(blocks=len(PAGES))


def write_all(store: BlockStore) -> None:
    for first in PAGES[::30]:
        commit_to_disk(store, STORY, *range(first, first + 30))
    assert store.stats().cold.pages == len(PAGES)


def test_what_the_ledger_has_forgotten_is_found_by_the_next_look_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "BEHIND_SECONDS", 30.0)
    with (
        open_store(tmp_path, cold_bytes=LIMIT) as reader,
        open_store(tmp_path, cold_bytes=LIMIT) as writer,
    ):
        write_all(writer)
        reader.refresh()
        assert all(reader.find(page) is not None for page in STORY.ids(*PAGES))
        assert not reader.refresh()


def test_a_disk_that_does_not_answer_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    with (
        open_store(tmp_path, cold_bytes=LIMIT) as reader,
        open_store(tmp_path, cold_bytes=LIMIT) as writer,
    ):
        settle = reader.cold.settle

        def hang() -> None:
            assert answers.wait(60)
            settle()

        monkeypatch.setattr(reader.cold, "settle", hang)
        write_all(writer)
        began = time.monotonic()
        asked = [reader.refresh() for _ in range(100)]
        assert (any(asked), time.monotonic() - began < 20 * tiers.BEHIND_SECONDS) == (False, True)
        answers.set()
        assert reader.writer.settle(30)
        assert reader.find(STORY.id(300)) is not None
