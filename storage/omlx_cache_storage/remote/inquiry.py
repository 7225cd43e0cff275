"""What a look-up asks a remote tier: what it has of a chain, beyond what is known here."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId


class Inquiry(NamedTuple):
    """A chain and what of it is wanted.

    `keys` are its boundaries from the namespace (of no block) on: `keys[n]` is the key of the first
    n blocks. `paged` is the group of which every block is needed, None for a model without one; the
    first `known` blocks of it are to be had here. `others` are the other groups: a window's with
    the blocks that it reaches back, a state's with 0. `length` is the prompt's, in tokens, and
    `key` gives the key of a prefix of any length up to that. `firsts` are pages of the other groups
    that are needed wherever a prefix ends.
    """

    namespace: BlockKey
    block_size: int
    keys: Sequence[BlockKey]
    paged: str | None
    known: int
    others: Mapping[str, int]
    length: int
    key: Callable[[int], BlockKey]
    firsts: Sequence[PageId] = ()


class Asked(NamedTuple):
    """What came of an inquiry: whether pages are known now that were not, and in a word why not
    everything was found out, "" when it was."""

    news: bool
    trouble: str = ""
