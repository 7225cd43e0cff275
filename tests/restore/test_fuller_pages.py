"""A page that memory and disk hold different amounts of is restored from the fuller one."""

from dataclasses import replace
from pathlib import Path

import mlx.core as mx

from kit.plain import PlainChain, is_right
from omlx_cache_storage.page import Page, TensorSpec


def shorter(page: Page, held: int) -> Page:
    """Return a page of the same end that holds fewer tokens."""
    tensors = tuple(
        TensorSpec(t.name, t.dtype, (*t.shape[:2], held, *t.shape[3:])) for t in page.meta.tensors
    )
    meta = replace(page.meta, held=held, tensors=tensors)
    return Page(meta, mx.zeros((meta.nbytes,), dtype=mx.uint8))


def test_less_of_a_page_in_memory_is_passed_over_and_costs_nothing_its_place(
    tmp_path: Path,
) -> None:
    chain = PlainChain(4)
    with chain.open(tmp_path) as store:
        chain.store(store)
    with chain.open(tmp_path) as store:
        less = shorter(chain.page(3), 5)
        room = store.hot.reserve(less.meta.nbytes)
        assert room
        assert store.hot.put(less, room, dirty=False)
        caches, restored = chain.restore(store)
        assert restored.point.position == 4 * chain.size
        assert is_right(caches, 4 * chain.size)
        assert store.find(chain.id(3)) is not None
