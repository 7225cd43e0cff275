"""Somebody removes the cache's directory or parts of it, or puts other things in their place."""

import contextlib
import os
import shutil
from pathlib import Path

from ..requests import Requester
from .base import Fault


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
