"""What is measured: a store and live KV of a wanted shape, or hash chains of no meaning, with their
pages or with empty files that have the names of pages."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from omlx_cache.arrays.mlxio import Array, evaluate
from omlx_cache.begun import Begun
from omlx_cache.codecs.policy import CodecPolicy
from omlx_cache.commit.committer import CommitResult
from omlx_cache.prefix import PrefixCache
from omlx_cache.session import Session
from omlx_cache.store import BlockStore
from omlx_cache.tools.bench.figures import BLOCK_SIZE, Size
from omlx_cache.tools.small_model import whole_settings
from omlx_cache_storage.format.names import PageName, page_path
from omlx_cache_storage.keys import BlockKey, KeyChain, Tokens
from omlx_cache_storage.page import PAGED, Page, PageId, PageMeta, TensorSpec

WAIT_SECONDS = 600.0
RUN = "run"
"""The salt of sequences that are committed again and again."""


class LayersOnly:
    """A model that computes nothing: its KV is drawn instead."""

    def __init__(self, layers: int) -> None:
        self.layers = [None] * layers

    def parameters(self) -> dict[str, Array]:
        return {}


class Bed:
    """One store on a directory, and a prompt. `changed` are settings that differ from
    `whole_settings`."""

    def __init__(
        self,
        size: Size,
        directory: Path,
        *,
        hot: bool = True,
        codec_policy: CodecPolicy | None = None,
        kind: type[BlockStore] = BlockStore,
        **changed: Any,
    ) -> None:
        self.size = size
        directory.parent.mkdir(parents=True, exist_ok=True)
        room = 3 * size.kv_bytes + (64 << 20)
        fields = {"block_size": BLOCK_SIZE, "hot_bytes": room if hot else 0, **changed}
        self.store = kind(whole_settings(directory, room, **fields))
        # Restores that are begun are measured on small machines too.
        self.store.restores.limit_bytes = room
        self.cache = PrefixCache(LayersOnly(size.layers), self.store, codec_policy=codec_policy)
        self.tokens = [(31 * i + 7) % 50_000 for i in range(size.tokens + 1)]

    def live_arrays(self) -> list[tuple[Array, Array]]:
        shape = 1, self.size.heads, self.size.tokens, self.size.head_dim
        drawn = mx.random.normal(shape).astype(mx.bfloat16)
        layers = [(drawn + i, drawn - i) for i in range(self.size.layers)]
        evaluate([array for pair in layers for array in pair])
        return layers

    def restore(self, salt: str = "", begun: Begun | None = None) -> Session:
        """Restore everything; raises RuntimeError for less."""
        session = self.cache.session(self.tokens, salt=salt, begun=begun)
        if session.cached_tokens != self.size.tokens:
            raise RuntimeError(f"{session.cached_tokens} tokens restored: {session.miss_reason}")
        return session

    def begin(self) -> Begun:
        """Read everything ahead of a `restore`; raises RuntimeError for less."""
        # The salt of `restore`: another one, None too, is another prompt.
        begun = self.cache.begin(self.tokens, salt="")
        if not begun.wait(WAIT_SECONDS):
            raise RuntimeError("the restore that was begun did not come")
        return begun

    def filled(self, arrays: list[tuple[Array, Array]], salt: str = "") -> Session:
        """Return a session whose cache holds `arrays`, as if they had been computed."""
        session = self.cache.session(self.tokens, salt=salt)
        cache: Any
        for cache, (keys, values) in zip(session.prompt_cache, arrays, strict=True):
            cache.keys, cache.values, cache.offset = keys, values, self.size.tokens
        return session

    def again(self, arrays: list[tuple[Array, Array]]) -> Session:
        """Return a session to commit in the place of the one before, which is deleted."""
        self.flush()
        self.cache.clear(salt=RUN)
        self.flush()
        return self.filled(arrays, RUN)

    def commit(self, session: Session) -> CommitResult:
        """Commit; raises RuntimeError unless every block was new."""
        result = session.commit()
        if result.pages != self.size.tokens // BLOCK_SIZE:
            raise RuntimeError(f"{result.pages} pages committed: {dict(result.skipped)}")
        return result

    def flush(self) -> None:
        if not self.store.flush(WAIT_SECONDS):
            raise RuntimeError("the disk took no pages")


CHAIN = "the bare SHA-256 chain"
NAMESPACE = BlockKey(bytes(32))


def chain_of(number: int, blocks: int, block_size: int = BLOCK_SIZE) -> KeyChain:
    """Return one of many hash chains that have no block in common."""
    tokens = np.arange(blocks * block_size, dtype="<i8")
    tokens[0] = -number
    return KeyChain(NAMESPACE, tokens, block_size)


def ends_of(chain: KeyChain) -> range:
    return range(chain.block_size, len(chain) + 1, chain.block_size)


def hash_chain(tokens: Tokens) -> None:
    KeyChain(NAMESPACE, tokens, BLOCK_SIZE).key(len(tokens) // BLOCK_SIZE * BLOCK_SIZE)


def pages_of(number: int, blocks: int, nbytes: int) -> list[Page]:
    """Return the pages of a chain, which share one payload of `nbytes`."""
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
    page = PageId(chain.key(end), PAGED)
    name = PageName(page, chain.parent(end)[:8], end, chain.block_size, False)
    return Path(page_path(directory, NAMESPACE, name))


def touch_page(directory: Path, chain: KeyChain, end: int) -> Path:
    path = page_file(directory, chain, end)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path
