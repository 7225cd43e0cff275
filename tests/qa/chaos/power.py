"""What a disk may hold after a power cut: everything that was synced, and any part of the rest.

`RecordingDisk` keeps a log of what a store asked of the real file system, and `Disk` replays it.
The model is harsher than ext4's or APFS's journals, which keep the order of names. Of a file that
was not fsynced any set of its 4 KiB pages may be there, and any length. Of the changes of a
directory since its last fsync any subset may be there, in their order; a rename is there whole or
not at all. A directory whose own name was lost takes everything in it along.
"""

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from omlx_cache_storage.cold.disk import Durability, FileSystem, StrPath
from omlx_cache_storage.page import Buffer

PAGE = 4096
Kind = Literal["mkdir", "rmdir", "write", "rename", "unlink", "sync directory"]


@dataclass(frozen=True, slots=True)
class Operation:
    """One change. `data` is a written file's content, and `synced` whether it was fsynced."""

    kind: Kind
    path: Path
    target: Path | None = None
    data: bytes = b""
    synced: bool = False


class RecordingDisk(FileSystem):
    """The real file system; `log` has every change that it finished, in order. Thread-safe.

    A file's times are not in it: to lose them costs recency, never a page. `_lock` is held from a
    change to its entry: threads that delete what another one has just renamed come behind that; a
    write that fails deletes its file.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.log: list[Operation] = []

    @property
    def position(self) -> int:
        with self._lock:
            return len(self.log)

    def make_directory(self, path: StrPath) -> bool:
        with self._lock:
            made = super().make_directory(path)
            if made:
                self.log.append(Operation("mkdir", Path(path)))
            return made

    def remove_directory(self, path: StrPath) -> None:
        self._record_removal("rmdir", path, super().remove_directory)

    def write(self, path: StrPath, pieces: Sequence[Buffer], durability: Durability) -> int:
        data = b"".join(bytes(memoryview(piece)) for piece in pieces)
        with self._lock:
            nbytes = super().write(path, pieces, durability)
            synced = durability != "none"
            self.log.append(Operation("write", Path(path), data=data, synced=synced))
            return nbytes

    def publish(self, temporary: StrPath, final: StrPath) -> None:
        with self._lock:
            super().publish(temporary, final)
            self.log.append(Operation("rename", Path(temporary), Path(final)))

    def sync_directory(self, path: StrPath, durability: Durability) -> None:
        with self._lock:
            super().sync_directory(path, durability)
            if durability != "none":
                self.log.append(Operation("sync directory", Path(path)))

    def remove(self, path: StrPath) -> None:
        self._record_removal("unlink", path, super().remove)

    def _record_removal(self, kind: Kind, path: StrPath, remove: Callable[[StrPath], None]) -> None:
        with self._lock:
            was_there = self.exists(path)
            remove(path)
            if was_there:
                self.log.append(Operation(kind, Path(path)))


@dataclass(slots=True)
class File:
    """An inode: what was written, and whether it is on the disk."""

    data: bytes
    synced: bool


@dataclass(slots=True)
class Directory:
    """The names in a directory: those that are on the disk, and the changes that may be."""

    durable: dict[str, "File | Directory"] = field(default_factory=dict)
    now: dict[str, "File | Directory"] = field(default_factory=dict)
    pending: list[list[tuple[str, "File | Directory | None"]]] = field(default_factory=list)

    def change(self, *changes: tuple[str, "File | Directory | None"]) -> None:
        """Change names in one step: all of `changes` reach the disk together."""
        _apply(self.now, changes)
        self.pending.append(list(changes))

    def sync(self) -> None:
        self.durable = dict(self.now)
        self.pending.clear()


def _apply(
    names: dict[str, File | Directory], changes: Sequence[tuple[str, File | Directory | None]]
) -> None:
    for name, node in changes:
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class Disk:
    """A tree under `root`, whose own name is taken to be on the disk."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._tree = Directory()

    def replay(self, operations: Sequence[Operation], under_way: Operation | None) -> None:
        """Do what was done before the cut, and begin what was under way."""
        for operation in operations:
            self._do(operation)
        if under_way is not None and not under_way.path.is_relative_to(self._root):
            return
        if under_way is not None and under_way.kind == "write":
            self._parent(under_way.path).change((under_way.path.name, File(under_way.data, False)))
        elif under_way is not None and under_way.kind != "sync directory":
            self._do(under_way)

    def _do(self, operation: Operation) -> None:
        if not operation.path.is_relative_to(self._root):
            # What is remembered of the directory elsewhere is not what is cut off.
            return
        if operation.kind == "sync directory":
            self._directory(operation.path).sync()
            return
        name, parent = operation.path.name, self._parent(operation.path)
        if operation.kind == "mkdir":
            parent.change((name, Directory()))
        elif operation.kind == "write":
            parent.change((name, File(operation.data, operation.synced)))
        elif operation.kind == "rename":
            assert operation.target.parent == operation.path.parent
            parent.change((name, None), (operation.target.name, parent.now[name]))
        elif name in parent.now:
            parent.change((name, None))

    def _parent(self, path: Path) -> Directory:
        return self._directory(path.parent)

    def _directory(self, path: Path) -> Directory:
        node: File | Directory = self._tree
        for part in path.relative_to(self._root).parts:
            assert isinstance(node, Directory)
            node = node.now[part]
        assert isinstance(node, Directory)
        return node

    def materialise(self, target: Path, draw: random.Random) -> int:
        """Write what a cut leaves into a directory; return how many files are torn."""
        # How much of what nobody synced was written all the same differs from cut to cut.
        return _write(self._tree, target, draw, draw.choice([0.0, 0.5, 0.9, 0.99, 1.0]))


def _write(directory: Directory, target: Path, draw: random.Random, share: float) -> int:
    target.mkdir(mode=0o700, exist_ok=True)
    names = dict(directory.durable)
    for changes in directory.pending:
        if draw.random() < share:
            _apply(names, changes)
    torn = 0
    for name, node in names.items():
        if isinstance(node, Directory):
            torn += _write(node, target / name, draw, share)
            continue
        whole = node.synced or draw.random() < share
        data = node.data if whole else _remains(node.data, draw)
        torn += data != node.data
        path = target / name
        path.write_bytes(data)
        path.chmod(0o600)
    return torn


def _remains(data: bytes, draw: random.Random) -> bytes:
    """Return what is left of a file that nobody synced."""
    kind = draw.choice(["all", "nothing", "prefix", "pages", "pages", "length only"])
    if kind == "all":
        return data
    if kind == "nothing":
        return b""
    if kind == "prefix":
        return data[: draw.randrange(len(data) + 1)]
    left = bytearray(len(data))
    if kind == "pages":
        for start in range(0, len(data), PAGE):
            if draw.random() < 0.8:
                left[start : start + PAGE] = data[start : start + PAGE]
    return bytes(left)
