"""What was prepared is remembered until it is asked for, within a bound."""

import numpy as np

from omlx_cache.requests.log import PreparedSequences
from omlx_cache_storage.keys import BlockKey, KeyChain

NAMESPACE = BlockKey(bytes(32))


def chain(size: int, first: int) -> KeyChain:
    return KeyChain(NAMESPACE, np.arange(first, first + size, dtype="<i8"), 1 << 20)


def test_long_sequences_are_remembered_within_a_bound() -> None:
    prepared, size = PreparedSequences(), 1 << 20
    for number in range(8):
        prepared.add(chain(size, number), size - 100, size)
    assert sum(one.tokens.nbytes for one in prepared._latest) <= 16 << 20
    assert prepared.ask(chain(size, 7), size) == 100
    assert prepared.ask(chain(size, 0), size) == 0


def test_an_interrupted_sequence_counts_once() -> None:
    prepared = PreparedSequences()
    for end in range(20, 120, 10):
        prepared.add(chain(end, 7), end - 10, end)
    assert not prepared.unasked(2)
    assert prepared.ask(chain(200, 7), 200) == 100
    # Somebody has asked for it: what is prepared behind that is another one, and so is a part.
    prepared.add(chain(130, 7), 110, 130)
    prepared.add(chain(50, 7), 40, 50)
    prepared.add(chain(60, 8), 40, 60)
    assert prepared.unasked(3)
