"""Disks that refuse, are slow, full, read-only or removed, and files that somebody damages."""

import contextlib
import errno
import os
import random
import shutil
import threading
import time
from pathlib import Path
from typing import ClassVar

from kit.storage import FaultyDisk, files_in
from kit.storage.mounts import SmallDisk, small_disk

from .faults import Fault
from .requests import Requester
from .world import World

READS = ("open", "read", "read_into", "scan", "identity")
WRITES = ("make_directory", "write", "publish", "sync_directory", "set_times", "remove")
DAMAGE = ("flip", "flip", "flip", "cut", "extend", "zeros", "other")


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


def damage(path: Path, draw: random.Random, kind: str) -> None:
    """Damage one file in place; raises OSError when it has left."""
    raw = bytearray(path.read_bytes())
    if kind == "flip" and raw:
        # Half of them in the header, most of which is blank, and half in the payload.
        payload = min(int.from_bytes(raw[:8], "little") + 8, len(raw) - 1)
        place = draw.choice(
            [draw.randrange(min(2_048, len(raw))), draw.randrange(payload, len(raw))]
        )
        raw[place] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del raw[draw.randrange(len(raw) + 1) :]
    elif kind == "extend":
        raw += draw.randbytes(draw.choice([1, 7, 4096]))
    elif kind == "zeros" and raw:
        start = draw.randrange(len(raw)) // 512 * 512
        raw[start : start + 512] = bytes(len(raw[start : start + 512]))
    elif kind == "other":
        # Files of one kind: which others there are depends on the time that a round takes.
        like = path.name if path.suffix == ".json" else f"*{path.suffix}"
        others = sorted(path.parents[draw.choice([1, 2])].rglob(like))
        raw = bytearray(draw.choice(others).read_bytes())
    with open(path, "r+b") as file:
        file.write(raw)
        file.truncate(len(raw))


class LiveDamage(Fault):
    """Damage while the store runs, so that a file changes between two reads of it."""

    name = "damage while running"

    def options(self) -> dict[str, object]:
        # No room to spare for what is appended to files: the budget is looked at elsewhere.
        return {**super().options(), "hot_cache_only": False, "hot_bytes": 0}

    def tick(self, main: Requester) -> None:
        if self.draw.random() < 0.5:
            return
        with contextlib.suppress(OSError, IndexError):
            # Directories come and go while they are listed.
            files = files_in(self.world.cold_dir) + files_in(self.world.cold_dir, "namespace.json")
            for path in self.draw.sample(files, min(len(files), 3)):
                kind = self.draw.choice([kind for kind in DAMAGE if kind != "extend"])
                damage(path, self.draw, kind)
                self.world.count()


class Removal(Fault):
    name = "removal"

    def options(self) -> dict[str, object]:
        return {**super().options(), "hot_cache_only": False}

    def tick(self, main: Requester) -> None:
        if self.draw.random() < 0.15:
            with contextlib.suppress(OSError, IndexError):
                self._remove()
                self.world.count()

    def _remove(self) -> None:
        cold = self.world.cold_dir
        depth = self.draw.choice([0, 1, 1, 2, 2, 3, 3, 3])
        if depth == 0:
            shutil.rmtree(cold)
            return
        victims = sorted(cold.glob("/".join("*" * depth)))
        for victim in self.draw.sample(victims, min(len(victims), self.draw.choice([1, 1, 5]))):
            self._replace(victim)

    def _replace(self, victim: Path) -> None:
        if victim.is_dir():
            shutil.rmtree(victim)
        else:
            victim.unlink()
        what = self.draw.choice(["nothing", "nothing", "pipe", "link", "file", "directory"])
        if what == "pipe":
            os.mkfifo(victim)
        elif what == "link":
            victim.symlink_to("/dev/zero")
        elif what == "file":
            victim.write_bytes(b"{" * self.draw.randrange(5_000))
        elif what == "directory":
            victim.mkdir()

    def calm(self) -> None:
        # What is no file of the cache is not the cache's to clean up, and is not in its budget.
        shutil.rmtree(self.world.cold_dir, ignore_errors=True)


class FullTmpfs(Fault):
    """A real file system: a tmpfs of the round's own, which is smaller than `cold_bytes`."""

    name = "full disk (tmpfs)"
    threads = 3

    def begin(self) -> None:
        self._mounted = contextlib.ExitStack()
        disk = small_disk(self.world.cold_dir, "size=840k,nr_inodes=4000")
        self._disk: SmallDisk = self._mounted.enter_context(disk)
        self._ballast = self.world.cold_dir / "ballast"

    def options(self) -> dict[str, object]:
        return {**super().options(), "hot_cache_only": False, "cold_bytes": 16 * 2**20}

    def tick(self, main: Requester) -> None:
        # One request after another finds it full; a restart finds it full as well.
        if self.draw.random() < 0.25:
            # All that is left is taken, as another program does.
            with contextlib.suppress(OSError), open(self._ballast, "ab", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            self.world.count()
        elif self.draw.random() < 0.2:
            self._ballast.unlink(missing_ok=True)
        if self.draw.random() < 0.03:
            self.world.reopen()

    def calm(self) -> None:
        self._disk.remount("size=64m,nr_inodes=100000")
        self._ballast.unlink(missing_ok=True)

    def end(self) -> None:
        self._mounted.close()
