"""What eviction policies have learned of uses, kept in a cold directory for the processes to come.

`reuse.json` lies beside the namespaces. Whoever measured last replaces it, whole or not at all: of
several processes with one directory the last writer's word stands. The room that is left for
directories holds it until the next start counts it.
"""

import json
import os
from pathlib import Path
from typing import NamedTuple

from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.document import read_document
from omlx_cache_storage.cold.temporary import TemporaryNames
from omlx_cache_storage.eviction.ages import Learned, parse_learned
from omlx_cache_storage.format.names import LEDGER_FILE, REUSE_FILE

VERSION = 1


class Reuse(NamedTuple):
    """What the policies of both tiers have learned, None for one that has nothing to say."""

    memory: Learned | None = None
    disk: Learned | None = None


def read_reuse(cold_dir: Path, fs: FileSystem | None = None) -> Reuse:
    """Return what a directory's file says, nothing for one that is missing, torn or somebody
    else's; reads a file, raises nothing."""
    return parse_reuse(read_document(os.path.join(cold_dir, REUSE_FILE), fs or FileSystem()))


def write_reuse(
    cold_dir: Path, reuse: Reuse, names: TemporaryNames, fs: FileSystem | None = None
) -> bool:
    """Replace a directory's file, whole or not at all; False where the directory is not this user's
    alone, is missing, or was not used by a store.

    Raises OSError. `names` lives for as long as somebody may write with it.
    """
    fs = fs or FileSystem()
    # Without a ledger it is the place where a disk is mounted at other times.
    if not fs.exists(os.path.join(cold_dir, LEDGER_FILE)) or not fs.identity(cold_dir)[-1]:
        return False
    tiers = {name: one.document() for name, one in reuse._asdict().items() if one is not None}
    raw = json.dumps({"version": VERSION, **tiers}).encode() + b"\n"
    names.replace(os.path.join(cold_dir, REUSE_FILE), raw, fs)
    return True


def parse_reuse(document: dict[str, object]) -> Reuse:
    """Return what a file says, as far as a policy of this version can have written it."""
    if document.get("version") != VERSION:
        return Reuse()
    tiers = (document.get(name) for name in Reuse._fields)
    return Reuse(*(parse_learned(one) if isinstance(one, dict) else None for one in tiers))
