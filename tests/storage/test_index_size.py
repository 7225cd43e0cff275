"""What the indexes take for a page: little memory."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from kit.examples import some
from kit.storage import put
from kit.work import traced_memory
from omlx_cache_storage.cold.index import Contents
from omlx_cache_storage.format.names import PageName, StoredPage
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Page, PageId, PageMeta, TensorSpec

PAGES = 11_000
"""So many that a dictionary of them has just grown, and has the most room to spare."""
MOST_BYTES = 650
CHAINS = [1, 40]
"""Pages that share a stamp."""
NAMESPACE = BlockKey(b"n" * 32)
BYTE = (TensorSpec("", "U8", (1,)),)
Made = TypeVar("Made")


def _key(number: int) -> BlockKey:
    return BlockKey((number * 0x9E3779B97F4A7C15).to_bytes(32, "little", signed=True))


def _stored(chain: int) -> Iterator[tuple[StoredPage, int]]:
    for number in range(PAGES):
        parent = _key(number - 1) if number % chain else NAMESPACE
        name = PageName(PageId(_key(number), "paged"), parent[:8], number % chain + 1, 1, False)
        yield StoredPage(NAMESPACE, name, 4096), 10**18 + number // chain


def _filled(chain: int) -> Contents:
    contents = Contents()
    contents.fill(_stored(chain))
    return contents


def _each(make: Callable[[], Made]) -> tuple[Made, float]:
    """Return what was made, and the bytes that it takes a page."""
    gc.collect()
    with traced_memory():
        made = make()
        gc.collect()
        return made, tracemalloc.get_traced_memory()[0] / PAGES


@pytest.mark.parametrize("chain", some(CHAINS, 40))
def test_what_is_known_of_a_page_on_the_disk_takes_few_bytes(chain: int) -> None:
    contents, each = _each(lambda: _filled(chain))
    assert len(contents) == PAGES
    assert each <= MOST_BYTES


@pytest.mark.nightly
@pytest.mark.parametrize("chain", CHAINS)
def test_what_is_known_of_a_page_in_memory_takes_few_bytes_besides_the_page(chain: int) -> None:
    pages = [
        Page(PageMeta(NAMESPACE, _key(n), _key(n - 1), "paged", n, 1, False, "dense", BYTE), b"\0")
        for n in range(PAGES)
    ]
    tier = HotTier(PAGES)

    def fill() -> None:
        for number, page in enumerate(pages):
            put(tier, page, dirty=False, stamp_ns=10**18 + number // chain)

    _, each = _each(fill)
    assert tier.usage().pages == PAGES
    assert each <= MOST_BYTES
