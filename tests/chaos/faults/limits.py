"""A process that runs out of file descriptors, again and again."""

import contextlib
import os
import resource

from ..requests import Requester
from .base import Fault


class FewDescriptors(Fault):
    name = "EMFILE"

    def begin(self) -> None:
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._held: list[int] = []

    def options(self) -> dict[str, object]:
        return {**super().options(), "hot_cache_only": False}

    def tick(self, main: Requester) -> None:
        if self.draw.random() < 0.4:
            self.calm()
            return
        if self._held or self.draw.random() < 0.5:
            return
        highest = max(int(name) for name in os.listdir("/dev/fd"))
        few = min(highest + 12, self._limits[0])
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, self._limits[1]))
        left = self.draw.choice([0, 1, 2, 4])
        with contextlib.suppress(OSError):
            while True:
                self._held.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(min(left, len(self._held))):
            os.close(self._held.pop())
        self.world.count()

    def calm(self) -> None:
        while self._held:
            os.close(self._held.pop())
        resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)

    def end(self) -> None:
        self.calm()
