"""The files and directories of a cold tier: staging, tidying, deleting; no index, no budget."""

import contextlib
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from omlx_cache_storage.cold.catalog import (
    DESCRIPTIONS,
    Inventory,
    digest_of,
    is_leftover,
    namespace_directories,
    shard_directories,
)
from omlx_cache_storage.cold.disk import (
    SMALL_FILE_BYTES,
    Descriptor,
    Doom,
    Durability,
    FileSystem,
    physical_bytes,
    remove_temporaries,
    replace_file,
)
from omlx_cache_storage.cold.index import Counted
from omlx_cache_storage.cold.ledger_records import Emptied
from omlx_cache_storage.cold.small_files import (
    MAX_DOCUMENT_BYTES,
    read_document,
)
from omlx_cache_storage.documents import names_model
from omlx_cache_storage.format.names import (
    BUDGET_FILE,
    CLEARED_PREFIX,
    ENTRY_BYTES,
    KEEPER_FILE,
    LEDGER_FILE,
    NAMESPACE_FILE,
    RATE_FILE,
    REUSE_FILE,
    TEMPORARY_PREFIX,
    WRITES_FILE,
    StoredPage,
    parse_name,
)
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Buffer
from omlx_cache_storage.private import claim

TAG_FILE = "CACHEDIR.TAG"
TAG = b"""Signature: 8a477f597d28d172789f06886806bc55
# This directory holds a cache of omlx-cache: what is in it can be computed again.
# For what this file is for, see https://bford.info/cachedir/
"""


EXPECTED_FILES = (TAG_FILE, REUSE_FILE, BUDGET_FILE, WRITES_FILE, LEDGER_FILE)
"""Files beside the namespaces. A file that may come later counts as if it existed."""


_json = json.JSONEncoder(indent=2, sort_keys=True, default=str).encode


class Taken(NamedTuple):
    cost: int


class PageFiles:
    """Knows where pages lie under `directory`. Methods raise OSError as the disk does.

    Any thread may call; `open` and `is_ours` belong to one at a time. `counted` are the directories
    and small files that the budget pays for. `doom` takes a temporary file that cannot be deleted
    and the bytes that it may have.
    """

    def __init__(
        self,
        directory: Path,
        fs: FileSystem,
        durability: Durability,
        doom: Doom = lambda path, nbytes: None,
    ) -> None:
        self.directory = directory
        self.fs = fs
        self.durability: Durability = durability
        self._root = os.fspath(directory)
        self._tag = os.path.join(self._root, TAG_FILE)
        self._tagged = False
        self._named: set[str] = set()
        self.counted: Counted[str, Taken] = Counted()
        self._identity: tuple[int, int, bool] | None = None
        self._doom = doom

    def document_bytes(self, namespace: BlockKey, document: Mapping[str, object]) -> int:
        known = self.counted.get(os.path.join(self._root, namespace.hex(), NAMESPACE_FILE))
        return len(encode_document(document)) + SMALL_FILE_BYTES if known is None else known.cost

    def expect(self, shard: str, described: int) -> None:
        for path, nbytes in self.places(shard, described).items():
            self.counted.count(path, Taken(nbytes))

    def places(self, shard: str, described: int) -> dict[str, int]:
        """Return what a shard's directory, the namespace's and its files take that are not
        counted."""
        places: dict[str, int] = {}
        if shard not in self.counted:
            directory, small = os.path.dirname(shard), SMALL_FILE_BYTES + ENTRY_BYTES
            for path, nbytes in (
                (shard, small),
                (directory, small),
                (os.path.join(directory, NAMESPACE_FILE), max(described, small)),
                # Earlier versions write it later, unasked.
                (os.path.join(directory, RATE_FILE), small),
            ):
                if path not in self.counted:
                    places[path] = nbytes
        return places

    def directory_of(self, page: StoredPage) -> str:
        # This runs for each written page of any process: `join` takes several times as long.
        return f"{self._root}{os.sep}{page.namespace.hex()}{os.sep}{page.shard}"

    def left(self, namespace: BlockKey, shard: str) -> None:
        directory = os.path.join(self._root, namespace.hex())
        whole = [directory, *(os.path.join(directory, name) for name in DESCRIPTIONS)]
        self.counted.end(*([os.path.join(directory, shard)] if shard else whole))

    def set_aside(self, namespace: BlockKey) -> str | None:
        """Rename a namespace's directory, as durably as the tier's policy says, to a name that no
        store reads; return its path, None for a namespace without one. It goes on counting."""
        directory = os.path.join(self._root, namespace.hex())
        aside = os.path.join(self._root, CLEARED_PREFIX + secrets.token_hex(8))
        try:
            self.fs.publish(directory, aside)
        except FileNotFoundError:
            return None
        self.counted.gather(directory, aside, Taken)
        self.fs.sync_directory(self._root, self.durability)
        return aside

    def end_aside(self, namespace: BlockKey, aside: str) -> None:
        """Stop counting a directory that was set aside, if it is deleted. One that has no page of
        ours, but other users' files, gets its name back. Raises nothing."""
        with contextlib.suppress(OSError):
            if not any(
                parse_name(file.name)
                for shard in self.fs.scan(aside)
                for file in self.fs.scan(shard.path)
            ):
                self.fs.publish(aside, os.path.join(self._root, namespace.hex()))
        if not self.fs.exists(aside):
            self.counted.end(aside)

    def remove_cleared(self) -> None:
        with contextlib.suppress(OSError):
            for entry in list(self.fs.scan(self._root)):
                if entry.name.startswith(CLEARED_PREFIX) and entry.is_dir(follow_symlinks=False):
                    self.remove_tree(entry.path)

    def remove_tree(self, directory: str) -> None:
        """Delete a namespace's files, wherever it lies, and the directories that are empty then;
        other files stay. Raises nothing."""
        with contextlib.suppress(OSError):
            for entry in list(self.fs.scan(directory)):
                if entry.is_dir(follow_symlinks=False):
                    self.remove_tree(entry.path)
                elif (
                    parse_name(entry.name) is not None
                    or entry.name in DESCRIPTIONS
                    or entry.name.startswith(TEMPORARY_PREFIX)
                ):
                    self.fs.remove(entry.path)
            self.fs.remove_directory(directory)

    def clear_up(self, found: Inventory) -> list[Emptied]:
        """Delete the leftovers of dead writers and empty directories, and count the other files.
        Return the removals that peer processes must learn of. No other process changes the
        directory meanwhile."""
        emptied: list[Emptied] = []
        remove_temporaries(
            self._root,
            self.fs,
            lambda file: is_leftover(file.name, file.stat(follow_symlinks=False).st_mtime_ns),
        )
        used = found.used - set(map(os.path.dirname, found.useless))
        for _digest, directory in namespace_directories(self.directory, self.fs):
            self._count_file(os.path.join(directory, NAMESPACE_FILE))
            shards = list(shard_directories(directory, self.fs))
            for shard in shards:
                self.expect(shard, 0)
            emptied += self.tidy(shard for shard in shards if shard not in used)
            if not shards:
                emptied += self.tidy_namespace(directory)
        return emptied

    def is_ours(self) -> bool:
        """True when the directory is the one that was read last, not replaced or opened to the
        writes of others; raises OSError for one that was removed."""
        return self._identity is not None and self.fs.identity(self.directory) == self._identity

    def open(self) -> None:
        """Begin with the directory as it is, and forget earlier knowledge of it. Raises NotPrivate,
        before anything is trusted, for a directory that others may write to."""
        claim(self.directory)
        self._identity = self.fs.identity(self.directory)
        self._tagged = False
        self.counted = Counted()
        self._count(self._root)
        for name in EXPECTED_FILES:
            self._count(os.path.join(self._root, name))
        # The service's file comes with the first service. Until a store opens anew, it lies in the
        # room that is left for small files.
        self._count_file(os.path.join(self._root, KEEPER_FILE))

    def count_small(self, name: str, nbytes: int) -> None:
        path = os.path.join(self._root, name)
        if nbytes:
            self._count(path, nbytes)
        else:
            self.counted.end(path)

    def stage(self, temporary: str, nbytes: int, document: Mapping[str, object]) -> Descriptor:
        """Begin to write a page of `nbytes` in all under a temporary name, in its own directory;
        return it open. Its directories and the namespace's document are made if need be. No other
        process changes the directory meanwhile."""
        shard = os.path.dirname(temporary)
        directory = os.path.dirname(shard)
        described = os.path.join(directory, NAMESPACE_FILE)
        for path in (directory, shard):
            if self.fs.own_file(path, stat.S_ISDIR) is None:
                if self.fs.make_directory(path):
                    self.fs.sync_directory(os.path.dirname(path), self.durability)
                else:
                    claim(path, links=False)
        if not self.fs.exists(described):
            replace_file(described, encode_document(document), self.fs, self.durability, self._doom)
            self.fs.sync_directory(directory, self.durability)
        elif described not in self._named:
            self._name(described, document.get("label"))
        self._named.add(described)
        self._count_file(described)
        return Descriptor(self.fs.reserve(temporary, nbytes), locked=True)

    def _name(self, described: str, name: object) -> None:
        """Give a namespace the name of its model, if another store knew only the class, or another
        name; raises nothing."""
        known, info = read_document(described, self.fs), self.fs.own_file(described)
        if not known or info is None or known.get("label") == name or not names_model(name):
            return
        raw = encode_document({**known, "label": name})
        # There may be no room for the successor of a large one.
        if len(raw) <= SMALL_FILE_BYTES:
            with contextlib.suppress(OSError):
                replace_file(described, raw, self.fs, self.durability, self._doom)
                self.fs.set_times(described, info.st_mtime_ns)

    def fill(self, temporary: str, pieces: list[Buffer]) -> int:
        """Write all of a page that is staged; return its physical bytes. The first one puts the tag
        into the directory that lets backups leave it out: opening a store waits for no write."""
        nbytes = self.fs.write(temporary, pieces, self.durability)
        if not self._tagged:
            # A cache without a tag is a cache all the same; the next page tries again.
            with contextlib.suppress(OSError):
                if not self.fs.exists(self._tag):
                    self.fs.write(self._tag, [TAG], self.durability)
                self._tagged = True
        return nbytes

    def tidy(self, shards: Iterable[str]) -> list[Emptied]:
        """Remove empty shard directories, and then empty directories of their namespaces; return
        the removals for peer processes."""
        emptied: list[Emptied] = []
        for shard in set(shards):
            with contextlib.suppress(OSError):
                self.fs.remove_directory(shard)
                self.counted.end(shard)
                directory, name = os.path.split(shard)
                emptied += [*_emptied(directory, name), *self.tidy_namespace(directory)]
        return emptied

    def tidy_namespace(self, directory: str) -> list[Emptied]:
        with contextlib.suppress(OSError):
            if {entry.name for entry in self.fs.scan(directory)} <= {*DESCRIPTIONS}:
                for path in (os.path.join(directory, name) for name in DESCRIPTIONS):
                    self.fs.remove(path)
                    self.counted.end(path)
                self.fs.remove_directory(directory)
                self.counted.end(directory)
                return _emptied(directory, "")
        return []

    def _count_file(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            nbytes = max(physical_bytes(os.lstat(path), MAX_DOCUMENT_BYTES), SMALL_FILE_BYTES)
            self.counted.count(path, Taken(nbytes + ENTRY_BYTES))

    def _count(self, path: str, nbytes: int = SMALL_FILE_BYTES) -> None:
        self.counted.count(path, Taken(nbytes + ENTRY_BYTES))


def _emptied(directory: str, shard: str) -> list[Emptied]:
    """Return the record of a removed shard, with "" that of its namespace's directory, and none for
    a directory that was set aside."""
    digest = digest_of(os.path.basename(directory))
    return [] if digest is None else [Emptied(digest, shard)]


def encode_document(document: Mapping[str, object]) -> bytes:
    """Return a namespace document's file content, at most `MAX_DOCUMENT_BYTES` long. Fields are
    whole as long as that fits. After that digests replace the largest of them, so that the short
    ones, which tell the model, stay readable."""
    shown = dict(document)
    text, left = _json(shown), list(shown)
    while left and len(text) >= MAX_DOCUMENT_BYTES:
        left.sort(key=lambda name: len(_json(document[name])))
        name = left.pop()
        shown[name] = _digest(shown[name])
        text = _json(shown)
    return f"{text}\n".encode() if len(text) < MAX_DOCUMENT_BYTES else b"{}\n"


def has_fields(document: Mapping[str, object], fields: Mapping[str, object]) -> bool:
    return all(
        name in document and document[name] in (value, _digest(value))
        for name, value in fields.items()
    )


def _digest(value: object) -> dict[str, object]:
    return {"omitted": "too large", "sha256": hashlib.sha256(_json(value).encode()).hexdigest()}
