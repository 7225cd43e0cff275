"""What lies in a cold directory, counted without opening a file."""

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from omlx_cache.control.cold_files import root_bytes
from omlx_cache_storage.cold.catalog import (
    DESCRIPTIONS,
    digest_of,
    namespace_directories,
    shard_directories,
    take_inventory,
)
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.files import TAG_FILE
from omlx_cache_storage.format.names import (
    BUDGET_FILE,
    ENTRY_BYTES,
    KEEPER_FILE,
    LEDGER_FILE,
    PINS_FILE,
    REUSE_FILE,
    WRITES_FILE,
    parse_name,
)
from omlx_cache_storage.keys import BlockKey

_DOCUMENTS = {
    *(BUDGET_FILE, KEEPER_FILE, LEDGER_FILE, PINS_FILE, REUSE_FILE, WRITES_FILE, TAG_FILE),
    # `omlx-cache move` of earlier versions leaves it in a copy when it is interrupted at its end.
    "moving.json",
}
SET_ASIDE = ".unreadable"


@dataclass(slots=True)
class Census:
    """Pages and their bytes, in all and by namespace, and the latest time of one; files that dead
    writers `left` and how many others are `writing`; what stores pass over (`ignored`), what is no
    cache's (`foreign`) and shards without anything in them (`empty`)."""

    pages: int = 0
    nbytes: int = 0
    by_namespace: Counter[BlockKey] = field(default_factory=Counter)
    latest_ns: int = 0
    writing: int = 0
    left: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)


def take_census(directory: Path, fs: FileSystem) -> Census:
    """Count what lies in a directory; raises OSError."""
    known = take_inventory(directory, fs)
    census = Census(len(known.pages), writing=len(known.under_way))
    for page, time_ns in known.pages:
        census.by_namespace[page.namespace] += page.nbytes + ENTRY_BYTES
        census.latest_ns = max(census.latest_ns, time_ns)
    census.nbytes = root_bytes(directory, fs) + census.by_namespace.total()
    census.left, census.ignored = known.useless, known.ignored
    census.foreign = [entry.path for entry in fs.scan(directory) if not _is_known(entry.name)]
    for _, namespace in namespace_directories(directory, fs):
        names = [entry.name for entry in fs.scan(namespace)]
        odd = [n for n in names if len(n) != 2 and n not in DESCRIPTIONS and n[0] != "."]
        census.foreign += [os.path.join(namespace, name) for name in odd]
        for shard in shard_directories(namespace, fs):
            names = [entry.name for entry in fs.scan(shard)]
            if not names:
                census.empty.append(shard)
            prefix = os.path.basename(shard)
            census.foreign += [os.path.join(shard, n) for n in names if not _is_page(n, prefix)]
    return census


def _is_known(name: str) -> bool:
    """True for what is a cache's beside its namespaces, for a namespace, and for hidden files."""
    is_document = name.removesuffix(SET_ASIDE) in _DOCUMENTS
    return is_document or name.startswith(".") or digest_of(name) is not None


def _is_page(name: str, shard: str) -> bool:
    return name.startswith(".") or (parse_name(name) is not None and name.startswith(shard))
