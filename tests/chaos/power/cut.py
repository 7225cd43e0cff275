"""What a disk may hold after a power cut: everything that was synced, and any part of the rest.

The model is harsher than ext4's or APFS's journals, which keep the order of names. Of a file that
was not fsynced any set of its 4 KiB pages may be there, and any length. Of the changes of a
directory since its last fsync any subset may be there, in their order; a rename is there whole or
not at all. A directory whose own name was lost takes everything in it along.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .record import Operation

PAGE = 4096


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
