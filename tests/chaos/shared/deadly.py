"""kill -9 where it hurts: a process that dies right before or behind a call that changes the disk.

Random kills from outside seldom meet the moment between two steps of a change. Here every call of
`CALLS` is one that may be the last, whoever makes it.
"""

import fcntl
import functools
import os
import random
import signal
from collections.abc import Callable
from types import ModuleType
from typing import Any

CALLS: tuple[tuple[ModuleType, str], ...] = (
    *((os, name) for name in (
        "pwrite", "pwritev", "write", "writev", "open", "rename", "replace", "link", "unlink",
        "remove", "mkdir", "rmdir", "ftruncate", "truncate", "posix_fallocate", "fsync", "utime",
        "close",
    )),
    (fcntl, "flock"),
    (fcntl, "lockf"),
)  # fmt: skip


class Deadly:
    """Each of the calls is the last one at the odds that are set: before it, or behind it."""

    def __init__(self, draw: random.Random, odds: float) -> None:
        self.odds = odds
        self._draw = draw
        for module, name in CALLS:
            call = getattr(module, name, None)
            if call is not None:
                setattr(module, name, self._deadly(call))

    def _deadly(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def deadly(*arguments: Any, **named: Any) -> Any:
            chance, odds = self._draw.random(), self.odds
            if chance < odds / 2:
                _die()
            done = call(*arguments, **named)
            if chance > 1 - odds / 2:
                _die()
            return done

        return deadly


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    # The signal comes at the latest when the call returns; nothing more is done.
    signal.pause()
