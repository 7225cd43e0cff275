"""The memory of stored sequences: what it finds, and that it stays small."""

import tracemalloc

import numpy as np

from kit.work import traced_memory
from omlx_cache.integrations.lanes import SEQUENCES, TOKENS, Siblings
from omlx_cache_storage.keys import as_tokens


def test_the_sibling_that_shares_most_is_found() -> None:
    siblings = Siblings()
    for tail in ([1, 2, 3], [1, 2, 9, 9], [5]):
        siblings.add(as_tokens([0, 0, *tail]))
    assert siblings.nearest(as_tokens([0, 0, 1, 2, 9, 4])).tolist() == [0, 0, 1, 2, 9, 9]


def test_one_that_continues_another_replaces_it() -> None:
    siblings = Siblings()
    for length in (3, 7):
        siblings.add(as_tokens(range(length)))
    assert len(siblings.nearest(as_tokens(range(3)))) == 7


def test_it_forgets_the_oldest() -> None:
    siblings = Siblings()
    for first in range(SEQUENCES + 1):
        siblings.add(as_tokens([first, 1]))
    assert siblings.nearest(as_tokens([0, 1])).tolist() != [0, 1]
    assert siblings.nearest(as_tokens([1, 1])).tolist() == [1, 1]
    siblings.add(as_tokens(range(TOKENS + 1)))
    assert siblings.nearest(as_tokens([1, 1])).size == 0


def test_a_token_takes_four_bytes() -> None:
    siblings, tokens = Siblings(), np.arange(2**19, dtype="<i8")
    with traced_memory():
        siblings.add(tokens)
        taken = tracemalloc.get_traced_memory()[0]
    assert taken < 5 * len(tokens)


def test_a_server_may_name_an_image_by_a_large_number() -> None:
    siblings, image = Siblings(), -(2**60)
    siblings.add(as_tokens([1, image, 2]))
    assert siblings.nearest(as_tokens([1, image, 9])).tolist() == [1, image, 2]
