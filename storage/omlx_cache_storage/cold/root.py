"""The directory of a cold tier itself: whether it is there, and is the one that it was.

A disk that is not mounted leaves no directory, or an empty one in its place. Neither is taken for
the cache. So the ledger has an identity, and the user's own state directory remembers which one a
path had and where its disk was mounted; within a process the device counts as well.
"""

import contextlib
import errno
import hashlib
import json
import os
from pathlib import Path
from typing import NamedTuple

from omlx_cache_storage.cold.disk import Durability, FileSystem
from omlx_cache_storage.cold.ledger import read_identity
from omlx_cache_storage.cold.small_files import read_document
from omlx_cache_storage.cold.temporary import TemporaryNames

MOST_RECORDS = 256
"""Directories that are remembered, those with the latest word."""


class DirectoryGone(FileNotFoundError):
    """The directory is missing and is not to be made; `strerror` says why and what to do."""

    def __init__(self, text: str) -> None:
        super().__init__(errno.ENOENT, text)


class KnownDirectory(NamedTuple):
    """What is remembered of a directory: the identity of its ledger, and where the file system was
    mounted that it lay on."""

    identity: str
    mount: str


class Root:
    """Makes the directory, unless it went away. Belongs to whoever opens it; methods raise OSError
    as the disk does.

    `memory`: the state directory, None to remember nothing beyond this object. `parents`: those
    that are missing are made too. `makes`: False to wait for somebody else to make it.
    """

    def __init__(
        self,
        directory: Path,
        fs: FileSystem,
        durability: Durability = "none",
        memory: Path | None = None,
        *,
        parents: bool = False,
    ) -> None:
        self._path = os.fspath(directory)
        self._fs = fs
        self._durability: Durability = durability
        self._parents = parents
        self.makes = True
        self._names = TemporaryNames()
        self._record = None if memory is None else record_path(memory, self._path)
        self._known: KnownDirectory | None = None
        self._device: int | None = None

    def have(self, *, deleted: bool) -> None:
        """Make the directory if it is missing and did not go away; raises DirectoryGone.

        `deleted`: the one that this process had was deleted, and neither renamed nor unmounted.
        """
        self.check(deleted=deleted)
        if not self._fs.exists(self._path):
            self._make()

    def check(self, *, deleted: bool = False) -> None:
        """Raise DirectoryGone where `have` does; makes nothing."""
        known = self._known or _remembered(self._record, self._fs)
        if not self._fs.exists(os.path.realpath(self._path)):
            self._check_missing(known, deleted)
            return
        identity = read_identity(self._path, self._fs)
        if known is None or identity == known.identity:
            return
        self._check_mount(known)
        if identity is None and self._is_elsewhere(self._path):
            raise DirectoryGone(
                f"{self._path} is an empty directory of another disk: the cache is gone with its "
                "own, and is used again when that is mounted"
            )

    def _check_missing(self, known: KnownDirectory | None, deleted: bool) -> None:
        if known is not None:
            self._check_mount(known)
        above = os.path.dirname(os.path.realpath(self._path))
        missing = list[str]()
        while not self._fs.exists(above):
            missing, above = [*missing, above], os.path.dirname(above)
        if self._is_elsewhere(above):
            raise DirectoryGone(
                f"{self._path} is gone with its disk, and is used again when that is mounted"
            )
        if self._device is not None and not (deleted and self.makes):
            raise DirectoryGone(
                f"{self._path} is gone: it is used again when it has its name back, or when you "
                "make it (mkdir)"
            )
        if missing and not self._parents:
            raise DirectoryGone(
                f"{self._path} cannot be made, since {missing[-1]} is missing: mount its disk, or "
                f"make the directory above (mkdir -p {missing[0]})"
            )

    def _check_mount(self, known: KnownDirectory) -> None:
        """Raise DirectoryGone where a file system is mounted no longer."""
        mount = self._fs.mount_point(self._path)
        if known.mount != mount and known.mount.startswith(mount.rstrip("/") + "/"):
            forget = "" if self._record is None else f"; if it never will be, rm {self._record}"
            raise DirectoryGone(
                f"{self._path} is gone with its disk: nothing is mounted at {known.mount}. It is "
                f"used again when that is there{forget}"
            )

    def _is_elsewhere(self, path: str) -> bool:
        """True when a path lies on another device than the directory did that this process had."""
        return self._device is not None and self._fs.identity(path)[0] != self._device

    def _make(self) -> None:
        above = Path(self._path).parents if self._parents else ()
        for path in [*reversed([one for one in above if not one.is_dir()]), Path(self._path)]:
            if self._fs.make_directory(path):
                # A parent that may be written to and not read is no reason to keep nothing.
                with contextlib.suppress(PermissionError):
                    self._fs.sync_directory(path.parent, self._durability)

    def remember(self, identity: str | None) -> None:
        """Note the directory that is open now for later, after a restart too if it has an
        identity."""
        self._device = self._fs.identity(self._path)[0]
        known = KnownDirectory(identity or "", self._fs.mount_point(self._path))
        if known == self._known:
            return
        self._known = known
        if identity and self._record is not None and known != _remembered(self._record, self._fs):
            # A state directory that cannot be written to costs the warning, and no more.
            with contextlib.suppress(OSError):
                self._write(self._record, known)

    def _write(self, record: str, known: KnownDirectory) -> None:
        if known.mount == "/":
            # That one is always there.
            self._fs.remove(record)
            return
        above = os.path.dirname(record)
        os.makedirs(above, 0o700, exist_ok=True)
        raw = json.dumps({"directory": self._path, **known._asdict()}).encode() + b"\n"
        self._names.replace(record, raw, self._fs)
        records = [entry for entry in self._fs.scan(above) if entry.is_file()]
        for old in sorted(records, key=lambda entry: entry.stat().st_mtime_ns)[:-MOST_RECORDS]:
            self._fs.remove(old.path)


def record_path(memory: Path, directory: str) -> str:
    """Return where it is remembered which directory a path named."""
    name = hashlib.sha256(os.fsencode(directory)).hexdigest()[:32]
    return os.path.join(memory, "directories", f"{name}.json")


def _remembered(record: str | None, fs: FileSystem) -> KnownDirectory | None:
    """Return what a record says, None for one that is missing or makes no sense."""
    said = {} if record is None else read_document(record, fs)
    identity, mount = said.get("identity"), said.get("mount")
    if not isinstance(identity, str) or not isinstance(mount, str):
        return None
    return KnownDirectory(identity, mount)
