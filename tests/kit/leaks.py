"""What a test must not leave behind: threads of this project, and open file descriptors."""

import contextlib
import gc
import os
import threading
import time
from pathlib import Path
from typing import NamedTuple

_DESCRIPTORS = Path("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd")
_PREFIX = "omlx-cache"
_ENDING_SECONDS = 2.0


class Open(NamedTuple):
    """Threads and descriptors of this process at one time; descriptors with what they lead to."""

    threads: frozenset[threading.Thread]
    descriptors: frozenset[tuple[str, str]]

    def since(self, before: "Open") -> "Open":
        """What is open here and was not before."""
        return Open(self.threads - before.threads, self.descriptors - before.descriptors)

    def __bool__(self) -> bool:
        return bool(self.threads or self.descriptors)

    def __str__(self) -> str:
        threads = sorted(f"thread {thread.name}" for thread in self.threads)
        files = sorted(f"descriptor {number} of {target}" for number, target in self.descriptors)
        return ", ".join(threads + files)


def now() -> Open:
    """Return what is open; takes some tens of microseconds, and collects nothing."""
    threads = frozenset(t for t in threading.enumerate() if t.name.startswith(_PREFIX))
    found = set()
    for number in os.listdir(_DESCRIPTORS):
        # The one that lists the directory is closed by now.
        with contextlib.suppress(OSError):
            found.add((number, _target(number)))
    return Open(threads, frozenset(found))


def left_since(before: Open) -> Open:
    """Return what is still open when garbage is gone and threads had time to end."""
    left = now().since(before)
    if not left:
        return left
    gc.collect()
    deadline = time.monotonic() + _ENDING_SECONDS
    for thread in now().since(before).threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return now().since(before)


def _target(number: str) -> str:
    path = _DESCRIPTORS / number
    if path.is_symlink():
        return os.readlink(path)
    os.fstat(int(number))
    return "a file"
