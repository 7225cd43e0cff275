"""The bare hash chain that look-ups and commits are set beside, and page files without a page."""

from pathlib import Path

from omlx_cache.adapters.base import PAGED, GroupSpec
from omlx_cache.tools.bench.sizes import BLOCK_SIZE
from omlx_cache_storage.format.names import PageName, format_name, shard_of
from omlx_cache_storage.keys import BlockKey, KeyChain, Tokens
from omlx_cache_storage.page import PageId

CHAIN = "the bare SHA-256 chain"
NAMESPACE = BlockKey(bytes(32))


def hash_chain(tokens: Tokens) -> None:
    """Compute every key of a sequence, and ask no index."""
    KeyChain(NAMESPACE, tokens, BLOCK_SIZE).key(len(tokens) // BLOCK_SIZE * BLOCK_SIZE)


def page_file(directory: Path, chain: KeyChain, end: int, group: GroupSpec = PAGED) -> Path:
    """Return where the page of a block lies in a cold directory."""
    held = 0 if group.kind == "state" else chain.block_size
    page = PageId(chain.key(end), group.name)
    name = PageName(page, chain.parent(end)[:8], end, held, False)
    return directory / NAMESPACE.hex() / shard_of(page.key) / format_name(name)


def touch_page(directory: Path, chain: KeyChain, end: int, group: GroupSpec = PAGED) -> Path:
    """Make an empty file that has the name of a block's page, and return where."""
    path = page_file(directory, chain, end, group)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path
