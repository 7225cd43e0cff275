"""What lies in a cold directory, counted in one walk that opens no file."""

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from omlx_cache_storage.cold.catalog import (
    namespace_directories,
    root_bytes,
    shard_directories,
    walk_shard,
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
    TEMPORARY_PREFIX,
    WRITES_FILE,
    parse_name,
)
from omlx_cache_storage.keys import BlockKey

MOVING_FILE = "moving.json"
"""What `omlx-cache move` of earlier versions leaves in a copy when it is interrupted at its end."""
_DESCRIPTIONS = {"namespace.json", "prefill.json"}
_DOCUMENTS = {BUDGET_FILE, KEEPER_FILE, LEDGER_FILE, MOVING_FILE, PINS_FILE, REUSE_FILE, TAG_FILE}
_DOCUMENTS |= {WRITES_FILE}
_SET_ASIDE = ".unreadable"
_NAMED = 1000


@dataclass(slots=True)
class Census:
    """Pages and their bytes, in all and by namespace; files that dead writers `left` and others are
    `writing`; what stores pass over (`ignored`), what is no cache's (`foreign`), shards without
    anything in them (`empty`), and the latest time of a page. Lists are cut at a thousand."""

    pages: int = 0
    nbytes: int = 0
    by_namespace: Counter[BlockKey] = field(default_factory=Counter)
    writing: int = 0
    left: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    latest_ns: int = 0


def take_census(directory: Path, fs: FileSystem) -> Census:
    """Count what lies in a directory; raises OSError."""
    census = Census(nbytes=root_bytes(directory, fs))
    ignored: list[str] = []
    known = list(namespace_directories(directory, fs, ignored.append))
    inside = {path for _, path in known}
    for entry in fs.scan(directory):
        if entry.name.startswith(TEMPORARY_PREFIX):
            continue
        is_directory = entry.is_dir(follow_symlinks=False)
        is_known = entry.path in inside or entry.path in ignored
        if not is_directory:
            is_known = entry.name.startswith(".") or _is_document(entry.name)
        if not is_known:
            census.foreign.append(entry.path)
    for digest, path in known:
        _count_namespace(census, digest, path, fs, ignored)
    census.ignored = ignored[:_NAMED]
    del census.foreign[_NAMED:], census.left[_NAMED:], census.empty[_NAMED:]
    return census


def _is_document(name: str) -> bool:
    return name.removesuffix(_SET_ASIDE) in _DOCUMENTS


def _count_namespace(
    census: Census, digest: BlockKey, path: str, fs: FileSystem, ignored: list[str]
) -> None:
    for entry in fs.scan(path):
        if entry.name in _DESCRIPTIONS or len(entry.name) == 2:
            continue
        if not entry.name.startswith((TEMPORARY_PREFIX, ".")):
            census.foreign.append(entry.path)
    for shard in shard_directories(path, fs, ignored.append):
        names = {entry.name for entry in fs.scan(shard)}
        if not names:
            census.empty.append(shard)
        for name in names:
            is_known = name.startswith((TEMPORARY_PREFIX, ".")) or parse_name(name) is not None
            if not is_known and len(census.foreign) < _NAMED:
                census.foreign.append(os.path.join(shard, name))
        for found in walk_shard(digest, shard, fs, ignored.append):
            if found.name is not None:
                census.pages += 1
                census.nbytes += found.nbytes + ENTRY_BYTES
                census.by_namespace[digest] += found.nbytes + ENTRY_BYTES
                census.latest_ns = max(census.latest_ns, found.mtime_ns)
            elif found.is_leftover and not fs.is_being_written(found.path):
                census.left.append(found.path)
            else:
                census.writing += 1
