"""A sound page that is unlike its neighbours is forgotten, so that a commit writes a right
one; one that holds less than its twin on the disk is passed over."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

from kit.plain import PlainChain, is_right, renamed
from kit.storage import put
from omlx_cache_storage.page import Page, TensorSpec

BLOCKS = 8
Wrong = Callable[[PlainChain, int], Page]

WRONG: dict[str, Wrong] = {
    "other heads": lambda chain, number: chain.page(number, heads=3),
    "another batch": lambda chain, number: chain.page(number, batch=2),
    "a leaf that the model lacks": lambda chain, number: chain.page(number, leaf=5),
    "other fields": lambda chain, number: renamed(chain.page(number), "keys", "words"),
    "one layer twice": lambda chain, number: renamed(chain.page(number), "1.", "0.1."),
}


@pytest.mark.parametrize("tier", ["hot", "cold"])
@pytest.mark.parametrize("number", [1, 4, 8])
@pytest.mark.parametrize("wrong", WRONG)
def test_the_odd_page_is_forgotten_and_the_next_commit_heals_the_chain(
    tmp_path: Path, wrong: str, number: int, tier: str
) -> None:
    chain = PlainChain(BLOCKS)
    with chain.open(tmp_path) as store:
        chain.store(store, [WRONG[wrong](chain, number)])
        if tier == "cold":
            for n in range(1, BLOCKS + 1):
                store.hot.discard([chain.id(n)])
        caches, restored = chain.restore(store)
        before = (number - 1) * chain.size
        assert (restored.point.position, restored.point.reason) == (before, "mismatch")
        assert is_right(caches, before)
        present = [n for n in range(1, BLOCKS + 1) if store.find(chain.id(n)) is not None]
        assert present == [n for n in range(1, BLOCKS + 1) if n != number]

        chain.store(store)
        caches, restored = chain.restore(store)
        assert (restored.point.position, restored.point.reason) == (BLOCKS * chain.size, None)
        assert is_right(caches, BLOCKS * chain.size)
        store.hot.check_integrity()


def test_without_a_majority_no_page_is_trusted(tmp_path: Path) -> None:
    chain = PlainChain(2)
    with chain.open(tmp_path) as store:
        chain.store(store, [chain.page(1, heads=3)])
        caches, restored = chain.restore(store)
        assert (restored.point.position, restored.point.reason) == (0, "mismatch")
        assert is_right(caches, 0)
        assert [store.find(chain.id(n)) for n in (1, 2)] == [None, None]


@pytest.mark.parametrize("number", [1, 4, 8])
def test_a_page_that_only_this_build_cannot_decode_stays(tmp_path: Path, number: int) -> None:
    chain = PlainChain(BLOCKS)
    codec = '{"0.keys":["future9(x=1)","F32",4]}'
    strange = renamed(chain.page(number, codec=codec), "0.keys", "0.keys.packed")
    with chain.open(tmp_path) as store:
        chain.store(store, [strange])
        caches, restored = chain.restore(store)
        before = (number - 1) * chain.size
        assert restored.point.position == before
        assert is_right(caches, before)
        assert all(store.find(chain.id(n)) is not None for n in range(1, BLOCKS + 1))


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
        put(store.hot, less, dirty=False)
        caches, restored = chain.restore(store)
        assert restored.point.position == 4 * chain.size
        assert is_right(caches, 4 * chain.size)
        assert store.find(chain.id(3)) is not None
