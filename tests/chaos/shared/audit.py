"""A quiet moment: what every live store says of the directory, beside what is there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..tally import Verdict
from .measuring import nbytes, parts, temporary, twice, walk

Fail = Callable[[Verdict, str], None]


class Auditor:
    """Compares what resting stores say with the directory, and each quiet moment with the last."""

    def __init__(self, directory: Path, budget: int, fail: Fail) -> None:
        self._directory, self._budget, self._fail = directory, budget, fail
        self._temporary: set[str] = set()

    def measure(self) -> int:
        """Look at the directory while nobody works; return its bytes. A temporary file of a writer
        that is dead is left when the next quiet moment meets it again."""
        found = walk(self._directory)
        now = set(temporary(found))
        for path in sorted(now & self._temporary):
            self._fail("left", f"a temporary file that two quiet moments have met: {path}")
        self._temporary = now
        for page in twice(found):
            self._fail("left", f"two files of page {page}")
        used = nbytes(found)
        if used > self._budget:
            self._fail("over", f"{used} of {self._budget} bytes at rest: {parts(found)}")
        return used

    def compare(self, process: str, told: dict[str, Any], used: int) -> None:
        """Compare what one store says with the bytes that were there before and after."""
        if told["nbytes"] < used:
            self._fail("left", f"{process} counts {told['nbytes']} of {used} bytes")
        if told["limit_bytes"] != self._budget:
            self._fail("left", f"{process} has a limit of {told['limit_bytes']} bytes")
        if told["corrupt"]:
            self._fail("wrong", f"{process} found {told['corrupt']} pages damaged, by nobody")
        if told["state"] != "ok":
            self._fail("stuck", f"{process} at rest is {told['state']!r}")
        if "broken" in told:
            counted = f"{told['nbytes']} bytes counted, {used} there"
            self._fail("left", f"{process} fails its integrity check: {told['broken']}; {counted}")

    def at_the_end(self) -> None:
        """Look at the directory when all stores were closed, and one more was opened and closed."""
        for path in temporary(walk(self._directory)):
            self._fail("left", f"a temporary file after the end: {path}")
