"""A listing of many pages holds up nobody: no sorting and no making of paths under the lock."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kit.storage import FaultyDisk, Story, open_cold
from omlx_cache_storage import table
from omlx_cache_storage.cold import catalog, index
from omlx_cache_storage.cold import tier as cold_tier
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.format.names import PageName, StoredPage, page_path
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId

PAGES = 100_000


@pytest.fixture
def crowded(tmp_path: Path) -> ColdTier:
    """A tier that believes it holds 100,000 pages."""
    story = Story()
    cold = open_cold(tmp_path, 2**40)
    cold._index.contents.fill(
        (
            StoredPage(
                story.namespace,
                PageName(_page(n), b"\xff" * 8, n + 1, 1, False),
                16384,
            ),
            10**18 + n % 7,
        )
        for n in range(PAGES)
    )
    return cold


def _page(number: int) -> PageId:
    return PageId(BlockKey(number.to_bytes(32, "big")), "paged")


def test_info_is_answered_while_the_entries_of_many_pages_are_sorted(
    crowded: ColdTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[bool] = []

    def ask() -> None:
        """Ask for a page from another thread, which the listing's lock would hold up."""
        asker = threading.Thread(target=crowded.info, args=(_page(5),), daemon=True)
        asker.start()
        asker.join(10)
        answered.append(not asker.is_alive())

    def watched(work: Callable[..., Any]) -> Callable[..., Any]:
        def first(*args: Any, **options: Any) -> Any:
            if len(answered) < 3:
                ask()
            return work(*args, **options)

        return first

    monkeypatch.setattr(cold_tier, "sorted", watched(sorted), raising=False)
    monkeypatch.setattr(table, "sorted", watched(sorted), raising=False)
    monkeypatch.setattr(index, "page_path", watched(page_path))
    monkeypatch.setattr(catalog, "page_path", watched(page_path))
    found = crowded.entries()
    assert len(found) == PAGES
    assert found[0].stored.name.position == 99_996, "of the oldest stamp the deepest comes first"
    assert answered
    assert all(answered)


def test_a_listing_makes_no_path_and_sorts_nothing(
    crowded: ColdTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> Any:
        raise AssertionError("not needed")

    for module in (cold_tier, index, table):
        monkeypatch.setattr(module, "sorted", never, raising=False)
    for module in (index, catalog):
        monkeypatch.setattr(module, "page_path", never)
    assert len(crowded.listing()) == PAGES


def test_pages_are_found_while_another_is_written(tmp_path: Path) -> None:
    story, disk = Story(), FaultyDisk()
    cold = open_cold(tmp_path, fs=disk)
    cold.write(story.page(1), 10**18, story.document)
    disk.reached.clear()
    disk.gate.clear()
    with ThreadPoolExecutor(2) as threads:
        try:
            written = threads.submit(cold.write, story.page(2), 10**18, story.document)
            assert disk.reached.wait(30)
            assert threads.submit(cold.info, story.id(1)).result(5) is not None
        finally:
            disk.gate.set()
        assert written.result(30) == "written"
