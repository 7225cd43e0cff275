"""What happens to the processes and to their directory in the middle of their work."""

import contextlib
import os
import random
import shutil
from pathlib import Path
from typing import ClassVar, Protocol

from .processes import Process, Processes


class Scene(Protocol):
    """What a disturbance may touch."""

    directory: Path
    draw: random.Random
    processes: Processes

    def set_clock(self, offset_ns: int) -> None:
        """Set everybody's wall clock."""


class Disturbance:
    """Begins, lasts for `seconds`, and ends; `excuses` says that a flush may fail meanwhile."""

    name: ClassVar[str]
    seconds: ClassVar[float] = 2.0
    excuses: ClassVar[bool] = False

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    def begin(self) -> None:
        """Let it happen."""

    def go_on(self) -> None:
        """Called again and again until it ends."""

    def end(self) -> None:
        """Undo it, as far as it can be undone."""


class ClockSetBack(Disturbance):
    """All clocks are set back by seconds, an hour or a day; later they are right again."""

    name = "clock set back"

    def begin(self) -> None:
        self.scene.set_clock(-self.scene.draw.choice((5, 3_600, 86_400)) * 10**9)

    def end(self) -> None:
        self.scene.set_clock(0)


class Stopped(Disturbance):
    """One process stands still, wherever it is, while the others go on."""

    name = "stopped process"
    excuses = True

    def begin(self) -> None:
        ready = [process for process in self.scene.processes.all if process.ready]
        self._one: Process | None = self.scene.draw.choice(ready) if ready else None
        if self._one is not None:
            self.scene.processes.hold(self._one)

    def end(self) -> None:
        if self._one is not None:
            self.scene.processes.let_go(self._one)


class Removed(Disturbance):
    """Somebody removes the directory while all work on it, and makes it again."""

    name = "directory removed"
    excuses = True

    def begin(self) -> None:
        for _ in range(50):
            # A directory that somebody writes into at this moment does not go at once.
            shutil.rmtree(self.scene.directory, ignore_errors=True)
            if not self.scene.directory.exists():
                break
        with contextlib.suppress(FileExistsError):
            self.scene.directory.mkdir(mode=0o700)


class Full(Disturbance):
    """Another program takes all that is left of the disk, time and again, and gives it back."""

    name = "disk full"
    excuses = True

    def begin(self) -> None:
        self._ballast = self.scene.directory.parent / "ballast"
        found = os.statvfs(self._ballast.parent)
        total, free = (blocks * found.f_frsize for blocks in (found.f_blocks, found.f_bavail))
        self._most = free + (total - free) // 2
        self.go_on()

    def go_on(self) -> None:
        # What a store gives way with is taken as well, up to the half of what it had.
        with contextlib.suppress(OSError), open(self._ballast, "ab", buffering=0) as file:
            while file.tell() < self._most:
                file.write(bytes(4096))

    def end(self) -> None:
        self._ballast.unlink(missing_ok=True)


Turns = tuple[type[Disturbance], ...]
TIGHT: Turns = (ClockSetBack, Stopped, Removed)
SMALL_DISK: Turns = (Full, Stopped, Full, ClockSetBack)
ROOMY: Turns = (Stopped, ClockSetBack)
