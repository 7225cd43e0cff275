"""What was done and what went wrong, by fault: the one thing that rounds and threads share."""

import sys
import threading
from collections import Counter, defaultdict
from typing import Literal, NamedTuple

Verdict = Literal["wrong", "lost", "over", "stuck", "left"]
MEANINGS: dict[Verdict, str] = {
    "wrong": "a restored bit that an uninterrupted run would not hold",
    "lost": "a sequence that `flush` reported durable, was not evicted, and is not restored",
    "over": "a sample of memory or disk above its limit",
    "stuck": "a call that took longer than it was allowed to, or never came back",
    "left": "a thread, descriptor, file, pin or byte that was still there at the end",
}
_SHOWN = 8


class Failure(NamedTuple):
    fault: str
    verdict: Verdict
    what: str


class Tally:
    """Counts by fault, sums of what was done, and failures. Thread-safe: `_lock` guards it all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._sums: Counter[str] = Counter()
        self._skipped: dict[str, str] = {}
        self._failures: list[Failure] = []

    def count(self, fault: str, amount: int = 1) -> None:
        with self._lock:
            self._counts[fault] += amount

    def add(self, **amounts: int) -> None:
        """Add to the sums that belong to no fault: sessions, restored tokens, samples."""
        with self._lock:
            self._sums.update(amounts)

    def skip(self, fault: str, why: str) -> None:
        with self._lock:
            self._skipped[fault] = why

    def fail(self, fault: str, verdict: Verdict, what: str, repeat: str) -> None:
        """Count a failure, and print it with the line that repeats it."""
        with self._lock:
            self._failures.append(Failure(fault, verdict, what))
            seen = sum(one[:2] == (fault, verdict) for one in self._failures)
        if seen <= _SHOWN:
            sys.stderr.write(f"{verdict.upper()} ({fault}): {what}\n    {repeat}\n")

    @property
    def failures(self) -> list[Failure]:
        with self._lock:
            return list(self._failures)

    @property
    def skipped(self) -> dict[str, str]:
        with self._lock:
            return dict(self._skipped)

    def sum(self, name: str) -> int:
        with self._lock:
            return self._sums[name]

    def counted(self, fault: str) -> int:
        with self._lock:
            return self._counts[fault]

    def table(self) -> str:
        """Return the counts as a Markdown table, the sums, and what was skipped below it."""
        with self._lock:
            found: defaultdict[str, Counter[str]] = defaultdict(Counter)
            for failure in self._failures:
                found[failure.fault][failure.verdict] += 1
            lines = [
                f"| fault | count | {' | '.join(MEANINGS)} |",
                "|---|" + "--:|" * (1 + len(MEANINGS)),
            ]
            for fault in sorted({*self._counts, *found}):
                cells = [self._counts[fault], *(found[fault][verdict] for verdict in MEANINGS)]
                lines.append(f"| {fault} | " + " | ".join(f"{cell:,}" for cell in cells) + " |")
            sums = ", ".join(f"{count:,} {name}" for name, count in sorted(self._sums.items()))
            lines += ["", sums, *(f"Skipped: {name}: {why}" for name, why in self._skipped.items())]
        return "\n".join(lines) + "\n"
