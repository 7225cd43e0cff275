"""What was done and what went wrong, by fault: the one thing that rounds and threads share."""

import json
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, Literal

Verdict = Literal["wrong", "lost", "over", "stuck", "left"]
VERDICTS: tuple[Verdict, ...] = ("wrong", "lost", "over", "stuck", "left")
MEANINGS = {
    "wrong": "a restored bit that an uninterrupted run would not hold",
    "lost": "a sequence that `flush` reported durable, was not evicted, and is not restored",
    "over": "a sample of memory or disk above its limit",
    "stuck": "a call that took longer than it was allowed to, or never came back",
    "left": "a thread, descriptor, file, pin or byte that was still there at the end",
}
_SHOWN = 8


class Tally:
    """Counts by fault, and the longest time of each call. Thread-safe: `_lock` guards the rest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._longest: dict[str, float] = {}
        self._sums: Counter[str] = Counter()
        self._skipped: dict[str, str] = {}
        self._failures: list[dict[str, str]] = []

    def count(self, fault: str, amount: int = 1) -> None:
        with self._lock:
            self._counts[fault]["count"] += amount

    def add(self, **amounts: int) -> None:
        """Add to the sums that belong to no fault: sessions, restored tokens, samples."""
        with self._lock:
            self._sums.update(amounts)

    def fail(self, fault: str, verdict: Verdict, what: str, repeat: str) -> None:
        """Count a failure, and print it with the line that repeats it."""
        with self._lock:
            self._counts[fault][verdict] += 1
            seen = self._counts[fault][verdict]
            self._failures.append(
                {"fault": fault, "verdict": verdict, "what": what, "repeat": repeat}
            )
        if seen <= _SHOWN:
            sys.stderr.write(f"{verdict.upper()} ({fault}): {what}\n    {repeat}\n")

    def took(self, call: str, seconds: float) -> None:
        with self._lock:
            self._longest[call] = max(self._longest.get(call, 0.0), seconds)

    def skip(self, fault: str, why: str) -> None:
        with self._lock:
            self._skipped[fault] = why

    def merge(self, document: Mapping[str, Any]) -> None:
        """Take over what another process counted."""
        with self._lock:
            for fault, counts in document["faults"].items():
                self._counts[fault].update(counts)
            self._sums.update(document["sums"])
            for call, seconds in document["longest"].items():
                self._longest[call] = max(self._longest.get(call, 0.0), seconds)
            self._failures += document["failures"]
            self._skipped.update(document["skipped"])

    def document(self) -> dict[str, Any]:
        """Return everything as plain data."""
        with self._lock:
            return {
                "faults": {fault: dict(counts) for fault, counts in self._counts.items()},
                "sums": dict(self._sums),
                "longest": dict(self._longest),
                "skipped": dict(self._skipped),
                "failures": list(self._failures),
            }

    def sum(self, name: str) -> int:
        with self._lock:
            return self._sums[name]

    def counted(self, fault: str) -> int:
        with self._lock:
            return self._counts[fault]["count"]

    @property
    def failed(self) -> int:
        with self._lock:
            return len(self._failures)

    def table(self) -> str:
        """Return the counts and the sums of a campaign."""
        return f"{self.counts()}\n{self._summary(self.document())}\n"

    def counts(self) -> str:
        """Return the counts as a Markdown table, with what was skipped below it."""
        document = self.document()
        lines = [
            "| fault | count | " + " | ".join(VERDICTS) + " |",
            "|---|" + "--:|" * (len(VERDICTS) + 1),
        ]
        for fault, counts in sorted(document["faults"].items()):
            cells = [counts.get("count", 0), *(counts.get(v, 0) for v in VERDICTS)]
            lines.append(f"| {fault} | " + " | ".join(f"{cell:,}" for cell in cells) + " |")
        lines += [f"\nSkipped: {fault}: {why}." for fault, why in document["skipped"].items()]
        return "\n".join(lines) + "\n"

    @staticmethod
    def _summary(document: Mapping[str, Any]) -> str:
        sums, longest = document["sums"], document["longest"]
        slowest = ", ".join(
            f"`{call}` {seconds:.2f} s"
            for call, seconds in sorted(longest.items(), key=lambda item: -item[1])[:5]
        )
        return (
            f"{sums.get('sessions', 0):,} sessions, {sums.get('restored', 0):,} tokens restored "
            f"and compared, {sums.get('logits', 0):,} logits of real models, "
            f"{sums.get('promises', 0):,} promises of `flush` called in, "
            f"{sums.get('samples', 0):,} samples of the budgets. Longest calls, beyond what they "
            f"were allowed: {slowest or 'none'}."
        )

    def to_json(self) -> str:
        return json.dumps(self.document(), indent=1, sort_keys=True) + "\n"
