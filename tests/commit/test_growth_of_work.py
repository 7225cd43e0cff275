"""The host's work for a commit grows with pages + layers, not with their product."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache

from kit import zoo
from kit.drive import random_tokens
from kit.sessions import Opener
from kit.work import calls_of
from omlx_cache import BlockStore, PrefixCache
from omlx_cache.session import Session

BLOCK = 32
PAGES, LAYERS = 24, 8


def filled(store: BlockStore, pages: int, layers: int, salt: str) -> Session:
    """A session whose live caches hold a prompt of whole blocks."""
    model = zoo.build("llama")
    cache = PrefixCache(model, store, make_cache=lambda: [KVCache() for _ in range(layers)])
    session = cache.session(random_tokens(pages * BLOCK, 1), salt=salt)
    for layer in session.prompt_cache:
        layer.keys, layer.values = (mx.zeros((1, 2, pages * BLOCK, 4)) for _ in range(2))
        layer.offset = pages * BLOCK
    return session


def commit(store: BlockStore, pages: int, layers: int) -> Callable[[], Any]:
    return filled(store, pages, layers, f"{pages} x {layers}").commit


def checkpoint(store: BlockStore, pages: int, layers: int) -> Callable[[], Any]:
    session = filled(store, pages, layers, f"{pages} x {layers} on the way")
    return lambda: session.checkpoint(pages * BLOCK)


@pytest.mark.parametrize("work", [commit, checkpoint])
def test_twice_the_layers_do_not_make_the_work_for_a_page_more(
    work: Callable[[BlockStore, int, int], Callable[[], Any]], open_store: Opener
) -> None:
    store = open_store(hot_cache_only=True)
    calls_of(work(store, 1, 1))
    calls = {
        (pages, layers): calls_of(work(store, pages, layers))
        for pages in (PAGES, 2 * PAGES)
        for layers in (LAYERS, 2 * LAYERS)
    }
    assert store.stats().hot.pages >= 6 * PAGES
    few, many = (calls[pages, 2 * LAYERS] - calls[pages, LAYERS] for pages in (PAGES, 2 * PAGES))
    assert few > 0
    assert many - few < PAGES, "what a page takes more with twice the layers"
