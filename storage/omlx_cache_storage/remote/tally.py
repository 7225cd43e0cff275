"""What a remote tier counts."""

import threading
from collections import Counter
from collections.abc import Mapping

from omlx_cache_storage.histograms import Histograms


class RemoteTally:
    """Counts of a remote tier, by the names that `RemoteUsage` has for them. `_lock` guards
    `_counts` and `_errors`; `timings` guards itself."""

    def __init__(self) -> None:
        self.timings = Histograms()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()

    def add(self, **more: int) -> None:
        """Add to counts by their names."""
        with self._lock:
            self._counts.update(more)

    def note_error(self, reason: str) -> None:
        with self._lock:
            self._errors[reason] += 1

    def counts(self) -> dict[str, int]:
        """Return what was counted; what is left out is 0."""
        with self._lock:
            return dict(self._counts)

    def errors(self) -> Mapping[str, int]:
        with self._lock:
            return dict(self._errors)
