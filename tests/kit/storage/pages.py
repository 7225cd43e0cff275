"""Chains of pages whose payload follows from their id, so that every byte can be checked."""

import contextlib
import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kit.units import KIB
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.keys import KeyChain, as_tokens, namespace_digest
from omlx_cache_storage.page import Page, PageId, PageMeta, TensorSpec
from omlx_cache_storage.pins import PinRecord
from omlx_cache_storage.remote.tier import RemoteTier
from omlx_cache_storage.tiers import Tiers

BLOCK = 16


def expected_payload(page: PageId, nbytes: int) -> bytes:
    """Return the one payload that a page of this id and size may have."""
    seed = hashlib.sha256(page.key + page.group.encode()).digest()
    return np.random.default_rng(list(seed)).bytes(nbytes)


class Story:
    """One token sequence: pages by number (1 is the root), `nbytes` each."""

    def __init__(self, name: str = "story", *, nbytes: int = 4 * KIB, blocks: int = 64) -> None:
        self.document: dict[str, object] = {"model": name}
        self.namespace = namespace_digest(self.document)
        self.nbytes = nbytes
        self.chain = KeyChain(self.namespace, as_tokens(range(blocks * BLOCK)), BLOCK)

    def id(self, number: int, *, tail: int = 0, group: str = "paged") -> PageId:
        return PageId(self.chain.key(number * BLOCK - tail), group)

    def ids(self, *numbers: int) -> list[PageId]:
        return [self.id(number) for number in numbers]

    def meta(
        self,
        number: int,
        *,
        tail: int = 0,
        group: str = "paged",
        held: int = BLOCK,
        nbytes: int = 0,
    ) -> PageMeta:
        """Describe page `number`; with `tail` it ends so many tokens before its block does."""
        end = number * BLOCK - tail
        size = nbytes or self.nbytes
        return PageMeta(
            namespace=self.namespace,
            key=self.chain.key(end),
            parent=self.chain.parent(end),
            group=group,
            position=end,
            held=min(held, BLOCK - tail),
            tail=tail > 0,
            codec="dense",
            tensors=(TensorSpec("0.keys", "U8", (1, size)),),
        )

    def page(self, number: int, **fields: Any) -> Page:
        meta = self.meta(number, **fields)
        return Page(meta, expected_payload(meta.id, meta.nbytes))

    def floats(self, number: int) -> Page:
        """Return page `number` with numbers in it, which a packing shrinks."""
        tensors = (TensorSpec("0.keys", "F16", (1, 2, 16, 512)),)
        meta = replace(self.meta(number, nbytes=32 * KIB), tensors=tensors)
        values = np.random.default_rng(number).normal(size=16384)
        return Page(meta, values.astype(np.float16).tobytes())

    def pages(self, *numbers: int) -> list[Page]:
        return [self.page(number) for number in numbers]

    def pin(self, *numbers: int, until_ns: int | None = None, since_ns: int = 1) -> PinRecord:
        """Return a pin of a chain of pages."""
        keys = tuple(self.id(number).key for number in numbers)
        return PinRecord("key", keys[-1].hex(), since_ns, until_ns, self.namespace, keys)


def bytes_of(page: Page) -> bytes:
    return bytes(memoryview(page.payload))


def open_cold(directory: Path, limit_bytes: int = 2**30, **options: Any) -> ColdTier:
    """Return a cold tier that has read its directory."""
    tier = ColdTier(directory, limit_bytes, **options)
    tier.open()
    return tier


def write_pages(
    directory: Path,
    story: Story,
    *numbers: int,
    stamp_ns: int | None = None,
    limit_bytes: int = 2**30,
    **document: object,
) -> None:
    """Have pages in a directory, used now unless it is said when; `document` is the namespace's."""
    with contextlib.closing(open_cold(directory, limit_bytes)) as tier:
        for page in story.pages(*numbers):
            used_ns = time.time_ns() if stamp_ns is None else stamp_ns
            assert tier.write(page, used_ns, document or story.document) == "written"


def read_cold(tier: Tiers | ColdTier | RemoteTier, page: PageId) -> bytes:
    """Return a page's verified payload; raises PageError."""
    with tier.reading(page) as reader:
        payload = bytearray(reader.meta.nbytes)
        reader.read_into([payload])
    return bytes(payload)


def files_in(directory: Path, pattern: str = "*.safetensors") -> list[Path]:
    return sorted(directory.rglob(pattern))


def flip(path: Path, at: int = -1, bits: int = 1) -> None:
    """Change bits of one byte of a file."""
    raw = bytearray(path.read_bytes())
    raw[at] ^= bits
    path.write_bytes(raw)


def disk_usage(directory: Path) -> int:
    """Return the physical bytes of a directory tree as du counts them, itself included."""
    total = 0
    pending: Sequence[Path] = [directory]
    while pending:
        following: list[Path] = []
        for path in pending:
            try:
                total += os.lstat(path).st_blocks * 512
                if path.is_dir():
                    following += [Path(entry.path) for entry in os.scandir(path)]
            except FileNotFoundError:
                continue
        pending = following
    return total
