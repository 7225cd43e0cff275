"""The real file system with faults that a test switches on and off."""

import errno
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from omlx_cache.simulate.tiers import VirtualClock
from omlx_cache_storage import breaker
from omlx_cache_storage.cold.disk import Durability, FileSystem, StrPath
from omlx_cache_storage.page import Buffer

if TYPE_CHECKING:
    import pytest


class SetTime:
    """The time by which pauses after failures are measured; it stands still but for `pass_by`."""

    def __init__(self, monkeypatch: "pytest.MonkeyPatch") -> None:
        self._now = breaker.now()
        monkeypatch.setattr(breaker, "now", lambda: self._now)

    def pass_by(self, seconds: float) -> None:
        self._now += seconds


class HandClock(VirtualClock):
    """A store's clock that stands still but for `pass_by`."""

    def __init__(self) -> None:
        super().__init__(time.time_ns())

    def pass_by(self, seconds: float) -> None:
        self.set(self.now() + round(seconds * 1e9))


class FaultyDisk(FileSystem):
    """`fail[name] = errno` makes an operation refuse; `calls` counts them, and `opened_files` has
    the names of files that were opened.

    `torn_at` lets a write stop after so many bytes and fail. A write waits for `gate`, and says
    in `reached` that it is there.
    """

    def __init__(self) -> None:
        self.fail: dict[str, int] = {}
        self.calls: Counter[str] = Counter()
        self.opened_files: set[str] = set()
        self.torn_at: int | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()

    def _enter(self, name: str) -> None:
        self.calls[name] += 1
        code = self.fail.get(name)
        if code is not None:
            raise OSError(code, os.strerror(code))

    def make_directory(self, path: StrPath) -> bool:
        self._enter("make_directory")
        return super().make_directory(path)

    def remove_directory(self, path: StrPath) -> None:
        self._enter("remove_directory")
        super().remove_directory(path)

    def reserve(self, path: StrPath, nbytes: int) -> int:
        self._enter("reserve")
        return super().reserve(path, nbytes)

    def write(self, path: StrPath, pieces: Sequence[Buffer], durability: Durability) -> int:
        self.reached.set()
        self.gate.wait(60)
        self._enter("write")
        if self.torn_at is not None:
            whole = b"".join(bytes(memoryview(piece)) for piece in pieces)
            super().write(path, [whole[: self.torn_at]], durability)
            raise OSError(errno.EIO, "the disk went away")
        return super().write(path, pieces, durability)

    def publish(self, temporary: StrPath, final: StrPath) -> None:
        self._enter("publish")
        super().publish(temporary, final)

    def sync_directory(self, path: StrPath, durability: Durability) -> None:
        self._enter("sync_directory")
        super().sync_directory(path, durability)

    def open(self, path: StrPath) -> int:
        self.opened_files.add(os.path.basename(path))
        self._enter("open")
        return super().open(path)

    def read(self, fd: int, length: int, offset: int) -> bytes:
        self._enter("read")
        return super().read(fd, length, offset)

    def read_into(self, fd: int, offset: int, buffers: Sequence[Buffer]) -> int:
        self._enter("read_into")
        return super().read_into(fd, offset, buffers)

    def set_times(self, path: StrPath, time_ns: int) -> None:
        self._enter("set_times")
        super().set_times(path, time_ns)

    def remove(self, path: StrPath) -> None:
        self._enter("remove")
        super().remove(path)

    def identity(self, path: StrPath) -> tuple[int, int, bool]:
        self._enter("identity")
        return super().identity(path)

    def scan(self, path: StrPath):  # type: ignore[no-untyped-def]
        self._enter("scan")
        return super().scan(path)
