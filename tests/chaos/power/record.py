"""A file system that keeps a log of what it was asked, beside doing it."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from omlx_cache_storage.cold.disk import Durability, FileSystem
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

    A file's times are not in it: to lose them costs recency, never a page.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.log: list[Operation] = []

    def _done(self, operation: Operation) -> None:
        with self._lock:
            self.log.append(operation)

    @property
    def position(self) -> int:
        with self._lock:
            return len(self.log)

    def make_directory(self, path: Path) -> bool:
        new = [p for p in (Path(path), *Path(path).parents) if not p.is_dir()]
        made = super().make_directory(path)
        for directory in reversed(new if made else []):
            self._done(Operation("mkdir", directory))
        return made

    def remove_directory(self, path: Path) -> None:
        super().remove_directory(path)
        self._done(Operation("rmdir", Path(path)))

    def write(self, path: Path, pieces: Sequence[Buffer], durability: Durability) -> int:
        data = b"".join(bytes(memoryview(piece)) for piece in pieces)
        nbytes = super().write(path, pieces, durability)
        self._done(Operation("write", Path(path), data=data, synced=durability != "none"))
        return nbytes

    def publish(self, temporary: Path, final: Path) -> None:
        super().publish(temporary, final)
        self._done(Operation("rename", Path(temporary), Path(final)))

    def sync_directory(self, path: Path, durability: Durability) -> None:
        super().sync_directory(path, durability)
        if durability != "none":
            self._done(Operation("sync directory", Path(path)))

    def remove(self, path: Path) -> None:
        super().remove(path)
        self._done(Operation("unlink", Path(path)))
