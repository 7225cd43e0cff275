"""What a test must not leave behind: threads, descriptors, child processes, locks on files, and
files where no test has any business.

Children and locks are seen where the system tells of them, on Linux. Files count that carry this
process's number in their name, as sockets in a runtime directory and everything made by
`tempfile` do (`mark_temporary_names`), and all that is new in the current directory.

As a pytest plugin it makes a test fail that leaves something behind.
"""

import contextlib
import gc
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from omlx_cache.control.socket_paths import candidates

_DESCRIPTORS = Path("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd")
_LOCKS = Path("/proc/locks")
_NOT_OURS = ("MainThread", "idle-reader", "pytest_timeout", "tqdm", "asyncio_")
"""Threads that live as long as the process: idle readers wait for the next pool."""
_ENDING_SECONDS = float(os.environ.get("LEAKS_SECONDS", "10"))
"""A writer that was left behind may wait for a disk with other work."""


class Open(NamedTuple):
    """What this process has at one time, each with words that say what it is."""

    threads: frozenset[threading.Thread]
    descriptors: frozenset[tuple[str, str]]
    children: frozenset[int]
    locks: frozenset[str]
    files: frozenset[str]

    def since(self, before: "Open") -> "Open":
        """What is open here and was not before."""
        return Open(*(now - then for now, then in zip(self, before, strict=True)))

    def __bool__(self) -> bool:
        return any(bool(kind) for kind in self)

    def __str__(self) -> str:
        found = sorted(f"thread {thread.name}" for thread in self.threads)
        found += sorted(f"descriptor {number} of {target}" for number, target in self.descriptors)
        found += sorted(f"process {pid} ({_command(pid)})" for pid in self.children)
        found += sorted(f"lock {lock}" for lock in self.locks)
        found += sorted(f"file {path}" for path in self.files)
        return ", ".join(found)


def now() -> Open:
    """Return what is open; takes some hundred microseconds, and collects nothing."""
    threads = (t for t in threading.enumerate() if not t.name.startswith(_NOT_OURS))
    return Open(
        frozenset(threads),
        frozenset(_descriptors()),
        frozenset(_children()),
        frozenset(_locks()),
        frozenset(_files()),
    )


def left_since(before: Open, seconds: float = _ENDING_SECONDS) -> Open:
    """Return what is still open when garbage is gone, and threads and children had time to end,
    and clients that keep threads of their own to close their connections."""
    left = now().since(before)
    if not left:
        return left
    gc.collect()
    deadline = time.monotonic() + seconds
    # Looked at again and again: a thread need not end, one that reads may become an idle one.
    while (left := now().since(before)) and time.monotonic() < deadline:
        time.sleep(0.005)
    return left


def mark_temporary_names() -> None:
    """Have `tempfile` put this process's number into the names that it makes up."""
    tempfile.template = f"tmp-{os.getpid()}-"


def _descriptors() -> Iterator[tuple[str, str]]:
    for number in os.listdir(_DESCRIPTORS):
        # The one that lists the directory is closed by now.
        with contextlib.suppress(OSError):
            yield number, _target(number)


def _target(number: str) -> str:
    path = _DESCRIPTORS / number
    if path.is_symlink():
        return os.readlink(path)
    os.fstat(int(number))
    return "a file"


def _children() -> Iterator[int]:
    """Yield the children that run or were not waited for."""
    if not os.path.isdir("/proc/self/task"):
        return
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/self/task/{task}/children").read_text()
            yield from map(int, text.split())


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()[:80] or "ended"
    except OSError:
        return "gone"


def _locks() -> Iterator[str]:
    """Yield the kind and the inode of each lock on a file that this process holds."""
    with contextlib.suppress(OSError):
        for line in _LOCKS.read_text().splitlines():
            words = line.split()
            if words[1] != "->" and words[4] == str(os.getpid()):
                yield f"{words[1]} {words[5]}"


def _files() -> Iterator[str]:
    marked = re.compile(rf"(^|[^0-9]){os.getpid()}([^0-9]|$)")
    roots = {Path(tempfile.gettempdir()), Path("/tmp"), *candidates()}
    for root in roots:
        with contextlib.suppress(OSError):
            yield from (f"{root}/{n}" for n in os.listdir(root) if marked.search(n))
    with contextlib.suppress(OSError):
        # Caches of tools have a dot, or underscores.
        yield from (f"./{n}" for n in os.listdir() if not n.startswith((".", "__")))


def pytest_configure() -> None:
    mark_temporary_names()


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    before = now()
    yield
    left = left_since(before)
    assert not left, f"left behind: {left}"
