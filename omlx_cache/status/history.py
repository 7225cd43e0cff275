"""The last hours: samples of processes, in a bounded ring."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from omlx_cache.control.replies import Identity
from omlx_cache_storage.stats import Stats

SAMPLE_SECONDS = 10.0
SAMPLES = 720
"""Two hours of them."""
PROCESSES = 32
"""Of more than these the sum alone is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus(Identity):
    """A process with its statistics, as the status page and the metrics show it. One that does not
    answer has an `error`, no `stats`, and its last description of itself."""

    cold_dir: str | None = None
    stats: Stats | None
    error: str | None = None


class Sample(NamedTuple):
    """Counts since the sample before (tokens, seconds), and the bytes held at the time."""

    at: float
    asked_tokens: float
    restored_tokens: float
    saved_seconds: float
    hot_bytes: int
    cold_bytes: int


_NOTHING = Sample(0.0, 0.0, 0.0, 0.0, 0, 0)


class Series(NamedTuple):
    """A process's samples, the latest last."""

    title: str
    samples: deque[Sample]


class StatusHistory:
    """Samples each process and the sum of all (None); the bytes of a directory that several share
    count once. Some 150 kB for a process.

    `sample` belongs to one thread; any may call `rows`. `_lock` guards `_series`; `_totals`, what
    each process had counted when it answered last, belongs to the sampling thread.
    """

    def __init__(self, processes: Callable[[], Sequence[ProcessStatus]]) -> None:
        self._processes = processes
        self._lock = threading.Lock()
        self._series: dict[int | None, Series] = {
            None: Series("all processes", deque(maxlen=SAMPLES))
        }
        self._totals: dict[int, tuple[float, ...]] = {}

    def sample(self, now: float) -> None:
        """Ask the processes, and note their samples of a moment, in seconds since the epoch; none
        if that is less than `SAMPLE_SECONDS` after the last one. A process that does not answer has
        no sample, and its counts of that time are in its next. Samples of a future time are
        forgotten: the clock was set back."""
        with self._lock:
            for series in self._series.values():
                while series.samples and series.samples[-1].at > now:
                    series.samples.pop()
            last = self._series[None].samples
            # A thread that woke a little early is not to wait for twice as long.
            if last and now - last[-1].at < SAMPLE_SECONDS * 0.9:
                return
        found = [
            (one, self._sample(one, one.stats, now))
            for one in self._processes()
            if one.stats is not None
        ]
        directories: dict[str | None, int] = {}
        for one, sample in found:
            directories[one.cold_dir] = max(sample.cold_bytes, directories.get(one.cold_dir, 0))
        samples = [_NOTHING, *(sample for _, sample in found)]
        _, asked, restored, saved, hot, _ = map(sum, zip(*samples, strict=True))
        total = Sample(now, asked, restored, saved, int(hot), sum(directories.values()))
        with self._lock:
            self._series[None].samples.append(total)
            for one, sample in found:
                if one.pid in self._series or len(self._series) <= PROCESSES:
                    fresh = Series(one.title, deque(maxlen=SAMPLES))
                    self._series.setdefault(one.pid, fresh).samples.append(sample)
            oldest = now - SAMPLES * SAMPLE_SECONDS
            self._series = {
                pid: series
                for pid, series in self._series.items()
                if pid is None or (series.samples and series.samples[-1].at > oldest)
            }
        known = self._series.keys() | {one.pid for one, _ in found}
        self._totals = {pid: totals for pid, totals in self._totals.items() if pid in known}

    def rows(self) -> list[dict[str, object]]:
        """Return the sum (`pid` None) and, where there are several, each process, in columns named
        as the fields of a sample."""
        with self._lock:
            rows: list[dict[str, object]] = [
                {
                    "pid": pid,
                    "title": series.title,
                    **{
                        name: [round(getattr(sample, name), 3) for sample in series.samples]
                        for name in Sample._fields
                    },
                }
                for pid, series in self._series.items()
            ]
            return rows if len(rows) > 2 else rows[:1]

    def _sample(self, process: ProcessStatus, stats: Stats, now: float) -> Sample:
        """Return a process's counts since its last answer. A process that is seen for the first
        time has none, unless it has just begun."""
        requests = stats.requests
        total = (requests.asked_tokens, requests.restored_tokens, requests.saved_seconds)
        first = total if process.uptime_s > SAMPLE_SECONDS else (0.0, 0.0, 0.0)
        before = self._totals.get(process.pid, first)
        self._totals[process.pid] = total
        if total[0] < before[0]:
            # Another process has the number now.
            before = (0.0, 0.0, 0.0)
        asked, restored, saved = (b - a for a, b in zip(before, total, strict=True))
        disk = stats.cold.nbytes if stats.cold else 0
        return Sample(now, asked, restored, saved, stats.hot.nbytes, disk)
