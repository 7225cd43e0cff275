"""Real small file systems: full, out of inodes, remounted read-only."""

import contextlib
import itertools
import subprocess
import sys
from typing import ClassVar

from ..requests import Requester
from .base import Fault, Unavailable


def mount(*arguments: str) -> None:
    if not sys.platform.startswith("linux"):
        raise Unavailable("tmpfs needs Linux")
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"mounting a tmpfs needs root (CAP_SYS_ADMIN): {done.stderr.strip()}")


class SmallTmpfs(Fault):
    """The cold directory on a tmpfs of its own, which is smaller than `cold_bytes`."""

    size: ClassVar[str] = "size=700k,nr_inodes=4000"
    relieved: ClassVar[str] = "size=64m,nr_inodes=100000"
    threads = 3

    def begin(self) -> None:
        self.world.cold_dir.mkdir(parents=True)
        mount("-t", "tmpfs", "-o", self.size, "chaos", str(self.world.cold_dir))

    def options(self) -> dict[str, object]:
        return {**super().options(), "hot_cache_only": False, "cold_bytes": 16 * 2**20}

    def tick(self, main: Requester) -> None:
        # One request after another finds it full; a restart finds it full as well.
        if self.draw.random() < 0.25:
            self._fill()
            self.world.count()
        elif self.draw.random() < 0.2:
            self._relieve()
        if self.draw.random() < 0.03:
            self.world.reopen()

    def _fill(self) -> None:
        """Take all that is left, as another program does."""
        with contextlib.suppress(OSError), open(self.world.cold_dir / "ballast", "ab") as file:
            while True:
                file.write(bytes(4096))
                file.flush()

    def _relieve(self) -> None:
        for path in self.world.cold_dir.glob("ballast*"):
            path.unlink()

    def calm(self) -> None:
        self._remount(self.relieved)
        self._relieve()

    def end(self) -> None:
        subprocess.run(["umount", "-l", str(self.world.cold_dir)], check=True)

    def _remount(self, options: str) -> None:
        mount("-o", f"remount,{options}", str(self.world.cold_dir))


class SmallDisk(SmallTmpfs):
    name = "full disk (tmpfs)"


class FewInodes(SmallTmpfs):
    name = "no inodes (tmpfs)"
    size = "size=64m,nr_inodes=60"

    def _fill(self) -> None:
        with contextlib.suppress(OSError):
            for number in itertools.count():
                (self.world.cold_dir / f"ballast-{number}").touch()


class ReadOnlyRemount(SmallTmpfs):
    name = "read-only remount"
    size = "size=64m"

    def begin(self) -> None:
        super().begin()
        self._read_only = False

    def tick(self, main: Requester) -> None:
        if self.draw.random() < 0.15:
            self._read_only = not self._read_only
            try:
                self._remount("ro" if self._read_only else "rw")
            except Unavailable:
                # A file is open for writing: the system refuses, as it does elsewhere.
                self._read_only = False
            self.world.count(int(self._read_only))

    def calm(self) -> None:
        self._remount("rw")
