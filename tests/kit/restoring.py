"""A conversation on the disk, a disk that fails or waits page by page, and what must come back."""

import errno
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from kit import zoo
from kit.drive import chunks, feed, prefill, random_tokens, request, run, same, settings
from omlx_cache import BlockStore, PrefixCache, Session
from omlx_cache.arrays.mlxio import TOKEN_AXIS
from omlx_cache.control import cold_files
from omlx_cache.pages.layout import layout_of
from omlx_cache.restore.pending import PendingRestore, Restored, restore
from omlx_cache.restore.queue import RestoreQueue
from omlx_cache.restore.reading import Reading, Walk
from omlx_cache_storage.cold.disk import FileSystem, StrPath
from omlx_cache_storage.format.names import parse_name
from omlx_cache_storage.keys import KeyChain, as_tokens
from omlx_cache_storage.page import Buffer

BLOCK = 32
TOKENS = 200
DENSE, WINDOWED, HYBRID = "llama", "gemma3_text", "qwen3_next"


class PagedDisk(FileSystem):
    """Counts opens and payload reads by (position, group); `refuse` and `hold` say of which pages
    an open fails, or a payload waits for `gate`. `reached` is released once for each that waits."""

    def __init__(self) -> None:
        self.opened: Counter[tuple[int, str]] = Counter()
        self.payloads: Counter[tuple[int, str]] = Counter()
        self.refuse: Callable[[int, str], bool] = lambda position, group: False
        self.hold: Callable[[int, str], bool] = lambda position, group: False
        self.gate = threading.Event()
        self.reached = threading.Semaphore(0)
        self._open: dict[int, tuple[int, str]] = {}

    def open(self, path: StrPath, *, writing: bool = False) -> int:
        name = parse_name(os.path.basename(path))
        if name is None:
            return super().open(path, writing=writing)
        page = (name.position, name.id.group)
        self.opened[page] += 1
        if self.refuse(*page):
            raise OSError(errno.EIO, "the disk is failing")
        fd = super().open(path, writing=writing)
        self._open[fd] = page
        return fd

    def read_into(self, fd: int, offset: int, buffers: list[Buffer]) -> int:  # type: ignore[override]
        page = self._open[fd]
        self.payloads[page] += 1
        if self.hold(*page):
            self.reached.release()
            assert self.gate.wait(60)
        return super().read_into(fd, offset, buffers)


class Conversation:
    """One model's conversation of 200 tokens in blocks of 32, on the disk of a closed store.

    `open` opens that disk again; `queue` bounds what waits.
    """

    def __init__(self, family: str, directory: Path, **fields: Any) -> None:
        self.model = zoo.build(family)
        self.tokens = random_tokens(TOKENS, 1)
        self.directory = directory
        self._fields = {"snapshot_stride": BLOCK, **fields}
        self._references: dict[int, dict[str, dict[int, bytes]]] = {}
        with BlockStore(settings(directory, **self._fields)) as store:
            request(self.model, PrefixCache(self.model, store), self.tokens)
            assert store.flush(60)
        (self.namespace,) = cold_files.namespaces(directory)

    def open(self, disk: FileSystem | None = None, **fields: Any) -> BlockStore:
        return BlockStore(settings(self.directory, **self._fields, **fields), filesystem=disk)

    def fresh(self) -> list[Any]:
        return list(make_prompt_cache(self.model))

    def chain(self) -> KeyChain:
        return KeyChain(self.namespace, as_tokens([*self.tokens, 1, 2, 3]), BLOCK)

    def restore(self, store: BlockStore, limit: int = TOKENS) -> tuple[list[Any], Restored]:
        """Restore in the foreground."""
        caches = self.fresh()
        walk = Walk(store, caches, self.chain(), limit, TOKENS + 64, frozenset())
        return caches, restore(Reading(walk))

    def pending(
        self, store: BlockStore, queue: RestoreQueue, limit: int = TOKENS
    ) -> PendingRestore:
        chain, room = self.chain(), TOKENS + 64

        def new_walk(stamp: int | None) -> Walk:
            return Walk(store, self.fresh(), chain, limit, room, frozenset(), stamp)

        return PendingRestore(queue, new_walk)

    def goes_on(self, session: Session) -> bool:
        """Whether the rest of a prompt has the bits of a run that took the same steps."""
        turn = prefill(self.model, session, BLOCK)
        lead = chunks(self.tokens[: session.cached_tokens], BLOCK)
        return same(turn.logits, run(self.model, [*lead, *turn.steps]))

    def is_exact(self, caches: list[Any], position: int) -> bool:
        """True when caches hold, bit for bit, what an uninterrupted run holds at a position."""
        if position not in self._references:
            live = self.fresh()
            for chunk in chunks(self.tokens[:position], BLOCK):
                feed(self.model, live, chunk)
            self._references[position] = contents(live)
        reference, ours = self._references[position], contents(caches)
        wanted = needed(caches, position)
        return ours.keys() == reference.keys() and all(
            wanted.get(name, set()) <= ours[name].keys() <= reference[name].keys()
            and all(bits == reference[name][token] for token, bits in ours[name].items())
            for name in ours
        )


def contents(caches: list[Any]) -> dict[str, dict[int, bytes]]:
    """Return the bytes that caches hold, by tensor and token; a state's whole under token -1."""
    found: dict[str, dict[int, bytes]] = {}
    for leaf in layout_of(caches).leaves:
        held = [token for span in leaf.adapter.held(leaf.cache) for token in range(*span)]
        for field, array in leaf.adapter.arrays(leaf.cache).items():
            bits = np.array(array.view(mx.uint8))
            name = f"{leaf.path}.{field}"
            if leaf.group.kind == "state":
                found[name] = {-1: bits.tobytes()}
            else:
                found[name] = {
                    token: np.take(bits, index, axis=TOKEN_AXIS).tobytes()
                    for index, token in enumerate(held)
                }
    return found


def needed(caches: list[Any], position: int) -> dict[str, set[int]]:
    """Return the tokens that caches must hold at a position, by tensor."""
    return {
        f"{leaf.path}.{field}": {t for span in leaf.group.needs(position) for t in range(*span)}
        for leaf in layout_of(caches).leaves
        for field in leaf.adapter.arrays(leaf.cache)
    }
