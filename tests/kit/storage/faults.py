"""The real file system with faults that a test switches on and off."""

import errno
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

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


class Seconds:
    """A clock that stands still unless somebody sets `now`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class HandClock(VirtualClock):
    """A store's clock that stands still but for `pass_by`."""

    def __init__(self) -> None:
        super().__init__(time.time_ns())

    def pass_by(self, seconds: float) -> None:
        self.set(self.now() + round(seconds * 1e9))


OPERATIONS = (
    *("identity", "make_directory", "open", "peek", "poke", "publish", "read", "read_into"),
    *("remove", "remove_directory", "reserve", "scan", "set_times", "sync", "sync_directory"),
)


class FaultyDisk(FileSystem):
    """`fail[name] = errno` makes an operation refuse; `calls` counts them. `each[name]` is called
    before an operation, with what that is given.

    `torn_at` lets a write stop after so many bytes and fail. A write waits for `gate`, and says
    in `reached` that it is there.
    """

    def __init__(self) -> None:
        self.fail: dict[str, int] = {}
        self.each: dict[str, Callable[..., object]] = {}
        self.calls: Counter[str] = Counter()
        self.torn_at: int | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()

    def _enter(self, name: str, *given: Any) -> None:
        self.calls[name] += 1
        code = self.fail.get(name)
        if code is not None:
            raise OSError(code, os.strerror(code))
        if name in self.each:
            self.each[name](*given)

    def write(self, path: StrPath, pieces: Sequence[Buffer], durability: Durability) -> int:
        self.reached.set()
        self.gate.wait(60)
        self._enter("write", path, pieces, durability)
        if self.torn_at is not None:
            whole = b"".join(bytes(memoryview(piece)) for piece in pieces)
            super().write(path, [whole[: self.torn_at]], durability)
            raise OSError(errno.EIO, "the disk went away")
        return super().write(path, pieces, durability)


def enter_first(disk: type[FileSystem], names: Iterable[str]) -> None:
    """Have these operations of a disk call its `_enter` first, with their name and arguments."""
    for name in names:
        setattr(disk, name, _entered(name))


def _entered(name: str) -> Callable[..., Any]:
    real = FileSystem.__dict__[name]

    def call(self: Any, *given: Any, **options: Any) -> Any:
        self._enter(name, *given)
        return real.__get__(self)(*given, **options)

    return call


enter_first(FaultyDisk, OPERATIONS)
