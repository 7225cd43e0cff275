"""The index of rows by page id: whole keys decide, whatever their hashes."""

import os

import numpy as np
import pytest

from omlx_cache_storage.cold.contents import Contents
from omlx_cache_storage.cold.filling import Filling
from omlx_cache_storage.format.names import PageName, StoredPage
from omlx_cache_storage.index import KEY_BYTES, NONE, PageIndex
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId

KEYS = [BlockKey(os.urandom(size)) for size in (16, 32) for _ in range(1500)]
PAGES = [PageId(key, group) for key in KEYS for group in ("paged", "state")]


def _index(pages: list[PageId]) -> PageIndex:
    index = PageIndex()
    index.grow(len(pages))
    for row, page in enumerate(pages):
        index.add(page, row)
    return index


def test_each_page_is_found_in_its_row_one_by_one_and_together() -> None:
    index, mixed = _index(PAGES), [*PAGES, PageId(KEYS[0], "window")]
    assert [index.row(page) for page in mixed] == [*range(len(PAGES)), None]
    assert index.rows(mixed).tolist() == [*range(len(PAGES)), NONE]
    long = PAGES[len(PAGES) // 2 :]
    assert index.rows(long).tolist() == [*range(len(PAGES) // 2, len(PAGES))]
    assert [index.page(row) for row in range(len(PAGES))] == PAGES


def test_pages_that_went_are_not_found_and_hide_no_other() -> None:
    index = _index(PAGES)
    for page in PAGES[::3]:
        assert index.remove(page) is not None
        assert index.remove(page) is None
    found = [None if row % 3 == 0 else row for row in range(len(PAGES))]
    assert [index.row(page) for page in PAGES] == found
    assert len(index) == sum(row is not None for row in found)


def test_a_short_key_is_none_that_begins_so_and_ends_in_zeros() -> None:
    short, long = BlockKey(b"k" * 16), BlockKey((b"k" * 16).ljust(KEY_BYTES, b"\0"))
    index = _index([PageId(short, "paged")])
    assert index.row(PageId(long, "paged")) is None
    assert index.page(0).key == short


def test_pages_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omlx_cache_storage.index.hash", lambda page: 7, raising=False)
    some = PAGES[-60:]
    index = _index(some[:40])
    assert index.rows(some).tolist() == [*range(40), *[NONE] * 20]
    for page in some[:40:2]:
        index.remove(page)
    assert [index.row(page) is None for page in some[:40]] == [True, False] * 20


def test_a_key_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes at most, got 33"):
        _index([PageId(BlockKey(bytes(33)), "paged")])


def test_of_several_files_of_a_page_the_one_that_holds_most_is_kept_and_then_the_latest() -> None:
    filling, namespace = Filling(), BlockKey(b"n" * 32)
    held = [3, 5, 4, 5, 1]
    files = [
        StoredPage(namespace, PageName(PAGES[-1], b"p" * 8, 9, tokens, False), 4096 * number)
        for number, tokens in enumerate(held)
    ]
    other = StoredPage(namespace, PageName(PAGES[0], b"q" * 8, 9, 9, True), 1)
    for stamp, file in enumerate([*files, other]):
        filling.take(file, 100 + stamp)
    taken, useless = filling.finish()
    contents = Contents()
    contents.fill(taken)
    contents.check_integrity()
    assert contents.stored(PAGES[-1]) == files[3]
    assert contents.stored(PAGES[0]) == other
    assert sorted(useless) == sorted([*files[:3], files[4]])
    assert np.array_equal(taken.stamps, [103, 105])
