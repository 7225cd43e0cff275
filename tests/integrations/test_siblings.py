"""The memory of which blocks follow a boundary: what it finds, and that it stays small."""

import tracemalloc

import numpy as np

from omlx_cache.integrations.siblings import SiblingIndex
from omlx_cache_storage.keys import BlockKey, KeyChain

BLOCK = 16


def chain_of(tokens: list[int]) -> KeyChain:
    return KeyChain(BlockKey(b"n" * 32), np.array(tokens, dtype="<i8"), BLOCK)


def test_the_sibling_that_shares_most_is_found() -> None:
    index = SiblingIndex()
    start = list(range(BLOCK))
    for tail in ([1, 2, 3], [1, 2, 9, 9], [5]):
        index.add(chain_of(start + tail), BLOCK + len(tail))
    sibling = index.longest(chain_of([*start, 1, 2, 9, 4]), BLOCK)
    assert sibling is not None
    assert sibling.shared == BLOCK + 3
    assert sibling.tokens.tolist() == [*start, 1, 2, 9, 9]
    assert index.longest(chain_of([*start, 7]), BLOCK) is None
    assert index.longest(chain_of([*range(1, BLOCK + 1), 1]), BLOCK) is None


def test_tokens_beyond_what_was_stored_are_not_claimed() -> None:
    index = SiblingIndex()
    index.add(chain_of(list(range(40))), 20)
    sibling = index.longest(chain_of(list(range(40))), BLOCK)
    assert sibling is not None
    assert sibling.shared == 20


def test_it_forgets_the_oldest() -> None:
    index = SiblingIndex(blocks=10, siblings=3)
    for first in range(50):
        index.add(chain_of([first, *range(100, 100 + 2 * BLOCK)]), 2 * BLOCK + 1)
        assert len(index) <= 10
    assert index.longest(chain_of([49, 100]), 0) is not None
    assert index.longest(chain_of([0, 100]), 0) is None


def test_a_token_takes_four_bytes() -> None:
    index, tokens = SiblingIndex(), 2**19
    chain = KeyChain(BlockKey(b"n" * 32), np.arange(tokens, dtype="<i8"), 256)
    chain.key(tokens)
    tracemalloc.start()
    try:
        index.add(chain, tokens)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(index) == tokens // 256
    # And the boundaries.
    assert taken < 7 * tokens


def test_a_server_may_name_an_image_by_a_large_number() -> None:
    index, image = SiblingIndex(), -(2**60)
    index.add(chain_of([1, image, 2]), 3)
    # The same bytes, read as numbers of four bytes, are another block.
    halves = np.array([1, image, 2], dtype="<i8").view("<i4").tolist()
    index.add(chain_of(halves), len(halves))
    sibling = index.longest(chain_of([1, image, 9]), 0)
    assert len(index) == 2
    assert sibling is not None
    assert sibling.tokens.tolist() == [1, image, 2]
