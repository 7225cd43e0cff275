"""File names of pages: enough to index a directory without opening a file.

    <key hex>-<first 16 hex of parent>-<position>-<tokens held>-<group>[-t].safetensors

in the shard `<first two hex of key>/` of the namespace's directory. `t` marks a tail.
"""

import os
import re
from operator import itemgetter
from typing import NamedTuple

from omlx_cache_storage.keys import PARENT_HINT_BYTES as PARENT_HINT_BYTES
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId, PageMeta

SUFFIX = ".safetensors"
TEMPORARY_PREFIX = ".tmp-"
CLEARED_PREFIX = ".cleared-"
"""Of a namespace's directory that was cleared: its pages are served no more, and are deleted."""
NAMESPACE_FILE = "namespace.json"
RATE_FILE = "prefill.json"
REUSE_FILE = "reuse.json"
LEDGER_FILE = "ledger"
BUDGET_FILE = "budget.json"
PINS_FILE = "pins.json"
WRITES_FILE = "writes.json"
KEEPER_FILE = "keeper.json"
ENTRY_BYTES = 256
"""Bytes that a name takes in its directory: twice its length, since directories are half full."""

_NAME = re.compile(
    r"((?:[0-9a-f]{32}){1,2})-([0-9a-f]{16})-(0|[1-9][0-9]{0,14})-(0|[1-9][0-9]{0,14})"
    r"-([a-z0-9]{1,40})(-t)?" + re.escape(SUFFIX)
)


class PageName(NamedTuple):
    id: PageId
    parent_hint: bytes
    position: int
    held: int
    tail: bool


class StoredPage(NamedTuple):
    """A page file: its namespace, name and physical bytes."""

    namespace: BlockKey
    name: PageName
    nbytes: int

    @property
    def held(self) -> int:
        return self.name.held

    @property
    def shard(self) -> str:
        return self.name.id.key[:1].hex()

    @property
    def cost(self) -> int:
        return self.nbytes + ENTRY_BYTES


parent_hint = itemgetter(slice(PARENT_HINT_BYTES))
"""Returns the part of a parent key that indexes carry: enough to find, not to trust."""


def format_name(name: PageName) -> str:
    return (
        f"{name.id.key.hex()}-{name.parent_hint.hex()}-{name.position}-{name.held}"
        f"-{name.id.group}{'-t' if name.tail else ''}{SUFFIX}"
    )


def parse_name(text: str) -> PageName | None:
    """Return what a file name says, None unless `format_name` gives exactly this name."""
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    key, hint, position, held, group, tail = match.groups()
    return PageName(
        PageId(BlockKey(bytes.fromhex(key)), group),
        bytes.fromhex(hint),
        int(position),
        int(held),
        tail is not None,
    )


def name_of(meta: PageMeta) -> PageName:
    return PageName(meta.id, parent_hint(meta.parent), meta.position, meta.held, meta.tail)


def page_path(cold_dir: str | os.PathLike[str], namespace: BlockKey, name: PageName) -> str:
    """Return where a page's file lies in a cold directory. Text, no `Path`: in Python 3.12 that
    keeps every name it ever saw for as long as the process lives."""
    file = format_name(name)
    return os.path.join(cold_dir, namespace.hex(), file[:2], file)
