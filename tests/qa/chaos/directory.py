"""What lies in a shared directory: physical bytes, temporary files, pages with two files."""

import os
import stat
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omlx_cache_storage.format.names import TEMPORARY_PREFIX, parse_name

from .processes import Processes
from .tally import Verdict

Fail = Callable[[Verdict, str], None]
Walk = dict[tuple[str, int, int], int]
"""Bytes by path, inode, and when a file's inode changed last: the next file of a name may have the
inode of the one before."""
EXACT_SECONDS = 0.04


def walk(directory: Path) -> Walk:
    """Return the physical bytes of each file and directory, itself included.

    What vanishes meanwhile is left out. Of a directory that moves, this is no picture of any
    moment.
    """
    found: Walk = {}
    pending = [str(directory)]
    while pending:
        path = pending.pop()
        try:
            info = os.lstat(path)
            is_directory = stat.S_ISDIR(info.st_mode)
            if is_directory:
                pending += [entry.path for entry in os.scandir(path)]
        except (FileNotFoundError, NotADirectoryError):
            continue
        changed = 0 if is_directory else info.st_ctime_ns
        found[path, info.st_ino, changed] = info.st_blocks * 512
    return found


def nbytes(found: Walk) -> int:
    """Return the bytes of a walk: a file that was met under two names is one."""
    return sum({inode: size for (_, inode, _), size in found.items()}.values())


def surely(earlier: Walk, later: Walk) -> int:
    """Return bytes that lay there at the moment between two walks: of what both have met under the
    same name, and nobody has touched. More may have been there, and not less."""
    return nbytes({one: min(size, later[one]) for one, size in earlier.items() if one in later})


class Sampler:
    """Compares a directory with its budget, beside processes that work and while they rest.

    An exact sample stops all processes. Sure is what two walks in a row have both met. A walk that
    adds up to more than the budget proves nothing, and is followed by an exact sample at once.
    """

    def __init__(self, directory: Path, budget: int, processes: Processes, fail: Fail) -> None:
        self.exact_samples = 0
        self._directory, self._budget = directory, budget
        self._processes, self._fail = processes, fail
        self._last: Walk = {}
        self._next_exact = 0.0
        self._temporary: set[str] = set()

    def sample(self) -> None:
        """Take one sample, and an exact one when it is due or the other looks bad."""
        found = walk(self._directory)
        self._compare(surely(self._last, found), "surely")
        self._last = found
        if nbytes(found) > self._budget or time.monotonic() >= self._next_exact:
            with self._processes.frozen() as still:
                exact = walk(self._directory) if still else {}
            self.exact_samples += still
            self._compare(nbytes(exact), "all stopped")
            self._next_exact = time.monotonic() + EXACT_SECONDS

    def rest(self) -> int:
        """Look at the directory while nobody works; return its bytes. A temporary file of a writer
        that is dead is left when the next quiet moment meets it again."""
        found = walk(self._directory)
        now = {p for p, _, _ in found if os.path.basename(p).startswith(TEMPORARY_PREFIX)}
        for path in sorted(now & self._temporary):
            self._fail("left", f"a temporary file that two quiet moments have met: {path}")
        self._temporary = now
        pages: Counter[tuple[str, str, str]] = Counter()
        for path, _, _ in found:
            name = parse_name(os.path.basename(path))
            if name is not None:
                namespace = os.path.dirname(os.path.dirname(path))
                pages[namespace, name.id.key.hex(), name.id.group] += 1
        for page, count in pages.items():
            if count > 1:
                self._fail("left", f"two files of page {page}")
        self._compare(nbytes(found), "at rest")
        return nbytes(found)

    def compare(self, process: str, told: dict[str, Any], used: int) -> None:
        """Compare what one resting store says with the bytes that were there before and after."""
        if told["nbytes"] < used:
            self._fail("left", f"{process} counts {told['nbytes']} of {used} bytes")
        if told["limit_bytes"] != self._budget:
            self._fail("left", f"{process} has a limit of {told['limit_bytes']} bytes")
        if told["corrupt"]:
            self._fail("wrong", f"{process} found {told['corrupt']} pages damaged, by nobody")
        if told["state"] != "ok":
            self._fail("stuck", f"{process} at rest is {told['state']!r}")
        if "broken" in told:
            self._fail("left", f"{process} fails its integrity check: {told['broken']}")

    def _compare(self, used: int, how: str) -> None:
        if used > self._budget:
            self._fail("over", f"{used - self._budget} bytes over {self._budget} ({how})")
