"""Looks at the shared directory's bytes while the processes work, and compares with its budget."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from .measuring import Walk, nbytes, parts, surely, walk
from .processes import Processes

EXACT_SECONDS = 0.04


class Sampler:
    """Two kinds of samples. Exact: all processes are stopped, and the directory is measured. Sure:
    what two walks in a row have both met lay there between them, whatever moved. A walk that
    adds up to more than the budget proves nothing, and is followed by an exact sample at once.
    """

    def __init__(
        self, directory: Path, budget: int, processes: Processes, over: Callable[[str], None]
    ) -> None:
        self._directory, self._budget = directory, budget
        self._processes, self._over = processes, over
        self._last: Walk = {}
        self._next_exact = 0.0
        self.counts: Counter[str] = Counter()
        self.peak = 0

    def sample(self) -> None:
        """Take one sample, and an exact one when it is due or the other looks bad."""
        found = walk(self._directory)
        self.counts["sure"] += 1
        self._compare(surely(self._last, found), "surely", self._last)
        self._last = found
        suspect = nbytes(found) > self._budget
        self.counts["suspect"] += suspect
        if suspect or time.monotonic() >= self._next_exact:
            self.exact()
            self._next_exact = time.monotonic() + EXACT_SECONDS

    def exact(self) -> None:
        with self._processes.frozen() as still:
            found = walk(self._directory) if still else {}
        self.counts["exact" if still else "not frozen"] += 1
        self._compare(nbytes(found), "all stopped", found)

    def _compare(self, used: int, how: str, found: Walk) -> None:
        self.peak = max(self.peak, used)
        if used > self._budget:
            self.counts["over"] += 1
            self._over(
                f"{used - self._budget} bytes over the budget of {self._budget} ({how}: "
                f"{parts(found)})"
            )
