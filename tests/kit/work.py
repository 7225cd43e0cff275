"""Counting what some work takes, in calls and in bytes, which no clock says of a busy machine."""

import resource
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


def calls_of(work: Callable[[], object]) -> int:
    """Count the Python functions, and steps of generators, that some work takes."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@contextmanager
def traced_memory() -> Iterator[None]:
    """Python's own memory is counted by `tracemalloc` until the block ends."""
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def resident_bytes(pid: int) -> int:
    """Return the bytes of memory that a process has; 0 where the system does not say."""
    sizes = Path(f"/proc/{pid}/statm")
    return int(sizes.read_text().split()[1]) * resource.getpagesize() if sizes.exists() else 0
