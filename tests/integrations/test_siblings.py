"""The memory of which blocks follow a boundary: what it finds, and that it stays small."""

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
