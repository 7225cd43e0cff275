"""What the service has done since it was started, for metrics and people."""

import threading
from collections import Counter
from typing import Literal, get_args

Figure = Literal[
    "scrubbed_pages",
    "scrubbed_bytes",
    "damaged_pages",
    "unread_pages",
    "passes",
    "sweeps",
    "swept_files",
    "swept_sockets",
    "freed_pages",
    "reloads",
    "failures",
]
FIGURES: tuple[Figure, ...] = get_args(Figure)


class Figures:
    """Sums; `_lock` guards them. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: Counter[Figure] = Counter()

    def add(self, name: Figure, amount: int = 1) -> None:
        with self._lock:
            self._sums[name] += amount

    def to_dict(self) -> dict[str, int]:
        """Return every sum, those that are 0 too."""
        with self._lock:
            return {name: self._sums[name] for name in FIGURES}
