"""Damage that a restore must notice, or that the comparison of logits must show."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx

from kit.storage import put
from omlx_cache.prefix import Lookup
from omlx_cache_storage.format.header import decode_header, encode_header, payload_checksum
from omlx_cache_storage.format.names import parse_name
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Page, PageId

ON_DISK = ("corrupt", "other position", "stale")
IN_MEMORY = ("corrupt", "stale")
NOTICED = ("corrupt", "other position")
"""On the disk these must be misses. `stale` is another position's payload under a sound checksum,
as a wrong writer would make it: only the logits can show that one, as all damage in memory."""


class Victim(NamedTuple):
    """A page that a restore uses, and a page of its group that could pass for it."""

    key: str
    donor: str
    group: str

    @property
    def page(self) -> PageId:
        return PageId(BlockKey(bytes.fromhex(self.key)), self.group)

    @property
    def source(self) -> PageId:
        return PageId(BlockKey(bytes.fromhex(self.donor)), self.group)


def targets(found: Lookup, hot: HotTier) -> list[Victim]:
    """Return, for each group, the last page of a restore that another page can stand in for."""
    metas = {meta.id: meta for meta in (entry.meta for entry in hot.entries())}
    chosen: dict[str, Victim] = {}
    for location in found.pages:
        own = metas[PageId(BlockKey(bytes.fromhex(location.key)), location.group)]
        donors = [
            meta
            for meta in metas.values()
            if meta.group == own.group
            and meta.position != own.position
            and (own.held == 0 or meta.tensors == own.tensors)
        ]
        if donors:
            near = min(donors, key=lambda m: (abs(m.position - own.position), m.key))
            chosen[own.group] = Victim(own.key.hex(), near.key.hex(), own.group)
    return list(chosen.values())


@contextmanager
def in_memory(hot: HotTier, target: Victim, kind: str) -> Iterator[None]:
    """Swap a hot page's payload for inverted bits, or for another position's, and back."""
    good, donor = hot.get(target.page), hot.get(target.source)
    assert good is not None
    assert donor is not None
    if kind == "stale":
        wrong = Page(replace(good.meta, tensors=donor.meta.tensors), donor.payload)
    else:
        wrong = Page(good.meta, 255 - good.payload)
    mx.eval(wrong.payload)
    _replace(hot, wrong)
    try:
        yield
    finally:
        _replace(hot, good)


def _replace(hot: HotTier, page: Page) -> None:
    hot.discard([page.meta.id])
    put(hot, page, dirty=False)


@contextmanager
def on_disk(directory: Path, target: Victim, kind: str) -> Iterator[None]:
    """Damage a page's file while no store is open, and put it back."""
    path, donor = _file(directory, target.page), _file(directory, target.source)
    good = path.read_bytes()
    path.write_bytes(_damaged(good, donor.read_bytes(), kind))
    try:
        yield
    finally:
        # The store deletes a damaged file, and a shard's directory with its last file.
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(good)


def _damaged(good: bytes, donor: bytes, kind: str) -> bytes:
    if kind == "other position":
        return donor
    header = decode_header(good)
    if kind == "stale":
        other = decode_header(donor)
        payload = donor[other.data_offset :]
        meta = replace(header.meta, tensors=other.meta.tensors)
        return encode_header(meta, payload_checksum(payload)) + payload
    middle = (header.data_offset + len(good)) // 2
    return good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :]


def _file(directory: Path, page: PageId) -> Path:
    for path in directory.rglob(f"{page.key.hex()}-*.safetensors"):
        name = parse_name(path.name)
        if name is not None and name.id == page:
            return path
    raise FileNotFoundError(f"no file of {page}")
