"""A file system that keeps a log of what it was asked, beside doing it."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from omlx_cache_storage.cold.disk import Durability, FileSystem, StrPath
from omlx_cache_storage.page import Buffer

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
