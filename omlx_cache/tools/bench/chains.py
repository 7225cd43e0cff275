"""Hash chains of no meaning, with their pages, or with empty files that have the names of pages."""

from pathlib import Path

import numpy as np

from omlx_cache.tools.bench.figures import BLOCK_SIZE
from omlx_cache_storage.format.names import PageName, format_name, shard_of
from omlx_cache_storage.keys import BlockKey, KeyChain, Tokens
from omlx_cache_storage.page import PAGED, Page, PageId, PageMeta, TensorSpec

CHAIN = "the bare SHA-256 chain"
NAMESPACE = BlockKey(bytes(32))


def chain_of(number: int, blocks: int, block_size: int = BLOCK_SIZE) -> KeyChain:
    """Return one of many hash chains, which have no block in common."""
    tokens = np.arange(blocks * block_size, dtype="<i8")
    tokens[0] = -number
    return KeyChain(NAMESPACE, tokens, block_size)


def ends_of(chain: KeyChain) -> range:
    """Return where the blocks of a chain end."""
    return range(chain.block_size, len(chain) + 1, chain.block_size)


def hash_chain(tokens: Tokens) -> None:
    """Compute every key of a sequence, and ask no index."""
    KeyChain(NAMESPACE, tokens, BLOCK_SIZE).key(len(tokens) // BLOCK_SIZE * BLOCK_SIZE)


def pages_of(number: int, blocks: int, nbytes: int) -> list[Page]:
    """Return the pages of a chain, root first; all share one payload of `nbytes`."""
    chain = chain_of(number, blocks)
    payload = np.random.default_rng(7).bytes(nbytes)
    tensors = (TensorSpec("0.keys", "U8", (1, nbytes)),)
    return [
        Page(
            PageMeta(
                namespace=NAMESPACE,
                key=chain.key(end),
                parent=chain.parent(end),
                group=PAGED,
                position=end,
                held=BLOCK_SIZE,
                tail=False,
                codec="dense",
                tensors=tensors,
            ),
            payload,
        )
        for end in ends_of(chain)
    ]


def page_file(directory: Path, chain: KeyChain, end: int) -> Path:
    """Return where the page of a block lies in a cold directory."""
    page = PageId(chain.key(end), PAGED)
    name = PageName(page, chain.parent(end)[:8], end, chain.block_size, False)
    return directory / NAMESPACE.hex() / shard_of(page.key) / format_name(name)


def touch_page(directory: Path, chain: KeyChain, end: int) -> Path:
    """Make an empty file that has the name of a block's page, and return where."""
    path = page_file(directory, chain, end)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path
