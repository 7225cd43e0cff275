"""What a remote tier counts."""

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Numbers that only grow; names and meanings as in `RemoteUsage`."""

    lookups: int = 0
    lookup_phases: int = 0
    asked_pages: int = 0
    found_pages: int = 0
    late_lookups: int = 0
    read_pages: int = 0
    read_bytes: int = 0
    late_reads: int = 0
    lost_pages: int = 0
    bad_pages: int = 0
    written_pages: int = 0
    written_bytes: int = 0
    present_pages: int = 0


class RemoteTally:
    """Counts of a remote tier. `_lock` guards `_counts` and `_errors`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counts()
        self._errors: Counter[str] = Counter()

    def add(self, **more: int) -> None:
        """Add to counts by their names."""
        with self._lock:
            for name, number in more.items():
                setattr(self._counts, name, getattr(self._counts, name) + number)

    def note_error(self, reason: str) -> None:
        with self._lock:
            self._errors[reason] += 1

    def counts(self) -> dict[str, int]:
        with self._lock:
            return {name: getattr(self._counts, name) for name in Counts.__slots__}

    def errors(self) -> Mapping[str, int]:
        with self._lock:
            return dict(self._errors)
