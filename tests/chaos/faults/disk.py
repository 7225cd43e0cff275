"""A disk that refuses some of what it is asked, or takes its time: the real one below."""

import errno
import os
import random
import threading
import time
from typing import ClassVar

from kit.storage import FaultyDisk

from ..requests import Requester
from ..world import World
from .base import Fault

READS = ("open", "read", "read_into", "scan", "identity")
WRITES = ("make_directory", "write", "publish", "sync_directory", "set_times", "remove")


class ChaosDisk(FaultyDisk):
    """Refuses an operation of `refused` with one of `codes`, at `odds`; or takes up to `delay`
    seconds. `refusals` counts. Those fields change on the round's thread only."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.odds = 0.0
        self.delay = 0.0
        self.refused: tuple[str, ...] = ()
        self.codes: tuple[int, ...] = (errno.EIO,)
        self.refusals = 0
        self._draw = draw
        self._lock = threading.Lock()

    def _enter(self, name: str, *given: object) -> None:
        super()._enter(name, *given)
        if name not in READS + WRITES:
            return
        with self._lock:
            chance, wait = self._draw.random(), self._draw.random() * self.delay
            code = self._draw.choice(self.codes)
            refuses = name in self.refused and chance < self.odds
            self.refusals += refuses
        if wait:
            time.sleep(wait)
        if refuses:
            raise OSError(code, os.strerror(code))

    def heal(self) -> None:
        self.odds = self.delay = 0.0


class DiskFault(Fault):
    """Switches a disk's refusals on and off between requests."""

    codes: ClassVar[tuple[int, ...]] = (errno.EIO,)
    refused: ClassVar[tuple[str, ...]] = READS + WRITES
    odds: ClassVar[tuple[float, ...]] = (0.02, 0.3, 1.0)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._disk = ChaosDisk(world.random("disk"))
        self._disk.codes = self.codes

    def options(self) -> dict[str, object]:
        return {**super().options(), "hot_cache_only": False}

    def disk(self) -> ChaosDisk:
        return self._disk

    def tick(self, main: Requester) -> None:
        if self.draw.random() < 0.3:
            some = self.draw.sample(self.refused, self.draw.randrange(1, len(self.refused) + 1))
            self._disk.refused = tuple(some)
            self._disk.odds = self.draw.choice((0.0, *self.odds))
        self._count()

    def calm(self) -> None:
        self._disk.heal()
        self._count()

    def _count(self) -> None:
        self._disk.refusals, found = 0, self._disk.refusals
        self.world.count(found)


class FailingDisk(DiskFault):
    name = "EIO"


class FullDisk(DiskFault):
    name = "ENOSPC and EDQUOT"
    codes = (errno.ENOSPC, errno.EDQUOT)
    refused = ("make_directory", "write", "publish")


class ReadOnlyDisk(DiskFault):
    name = "EROFS"
    codes = (errno.EROFS,)
    refused = WRITES
    odds = (1.0,)


class SlowDisk(DiskFault):
    name = "slow disk"
    odds = (0.0,)

    def tick(self, main: Requester) -> None:
        if self.draw.random() < 0.3:
            self._disk.delay = self.draw.choice([0.0, 0.001, 0.008])
        if self._disk.delay:
            self.world.count()
