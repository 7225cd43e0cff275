"""The index of pages: tails by their boundary, without a container for each."""

import gc
from typing import NamedTuple

from omlx_cache_storage.index import PageIndex
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId, Tail


class _Entry(NamedTuple):
    position: int
    hint: bytes
    held: int = 3
    tail: bool = True


def _page(number: int) -> PageId:
    return PageId(BlockKey(number.to_bytes(32, "big")), "paged")


def _containers() -> int:
    gc.collect()
    return sum(isinstance(found, dict | set) for found in gc.get_objects())


def test_a_sequence_on_the_disk_costs_no_dictionary_of_its_own() -> None:
    index: PageIndex[_Entry] = PageIndex()
    before = _containers()
    for number in range(5000):
        index.put(_page(number), _Entry(number, number.to_bytes(8, "big")))
    assert _containers() - before < 50


def test_tails_of_one_boundary_come_and_go_one_by_one() -> None:
    index: PageIndex[_Entry] = PageIndex()
    parent = BlockKey(b"p" * 32)
    for number in (1, 2, 3):
        index.put(_page(number), _Entry(10 + number, parent[:8]))
        index.put(_page(number), _Entry(10 + number, parent[:8], held=4))
    left = {11, 12, 13}
    for number in (2, 3, 1):
        assert index.tails(parent) == {Tail(position, "paged") for position in left}
        index.pop(_page(number))
        left.discard(10 + number)
    assert index.tails(parent) == set()
    index.put(_page(4), _Entry(20, parent[:8]))
    assert index.tails(parent) == {Tail(20, "paged")}
