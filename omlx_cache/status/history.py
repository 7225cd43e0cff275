"""What the last hour was like: samples of processes, in a bounded ring."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from omlx_cache.status.documents import Document

SAMPLE_SECONDS = 10.0
SAMPLES = 720
"""Two hours of them."""
PROCESSES = 32
"""Of more than these the sum alone is kept."""
Numbers = tuple[float, ...]
Process = Mapping[str, Any]
"""As the operation `processes` has it."""
COUNTED = ("asked_tokens", "restored_tokens", "saved_seconds")
HELD = ("hot_bytes", "cold_bytes")


class Sample(NamedTuple):
    """What was counted since the sample before, and what was held at the time."""

    at: float
    counted: Numbers
    held: Numbers


class Series(NamedTuple):
    """A process's samples, the latest last."""

    title: str
    samples: deque[Sample]


class StatusHistory:
    """Samples each process and the sum of all; the bytes of a directory that several share count
    once. Some 150 kB for a process.

    `sample` belongs to one thread; any may call `rows`. `_lock` guards `_sums` and `_series`;
    `_totals`, what each process had counted when it answered last, belongs to the sampling thread.
    """

    def __init__(self, processes: Callable[[], Sequence[Process]]) -> None:
        self._processes = processes
        self._lock = threading.Lock()
        self._sums: deque[Sample] = deque(maxlen=SAMPLES)
        self._series: dict[object, Series] = {}
        self._totals: dict[object, Numbers] = {}

    def sample(self, now: float) -> None:
        """Ask the processes, and note what they say of a moment, in seconds since the epoch;
        nothing if that is less than `SAMPLE_SECONDS` after the last one. A process that does not
        answer has no sample, and what it counts meanwhile is in its next. Samples of a time that is
        yet to come are forgotten: the clock was set back."""
        with self._lock:
            self._forget_beyond(now)
            last = self._sums[-1].at if self._sums else None
        # A thread that woke a little early is not to wait for twice as long.
        if last is not None and now - last < SAMPLE_SECONDS * 0.9:
            return
        answers = [one for one in self._processes() if one["stats"] is not None]
        samples = [Sample(now, self._counted(one), _held(one)) for one in answers]
        total = Sample(now, _added(s.counted for s in samples), _held_by_all(answers))
        with self._lock:
            self._sums.append(total)
            for one, sample in zip(answers, samples, strict=True):
                self._note(one, sample)
            oldest = now - SAMPLES * SAMPLE_SECONDS
            self._series = {p: s for p, s in self._series.items() if s.samples[-1].at > oldest}
        known = self._series.keys() | {one["pid"] for one in answers}
        self._totals = {pid: totals for pid, totals in self._totals.items() if pid in known}

    def rows(self) -> list[Document]:
        """Return the sum (`pid` None) and, where there are several, each process: columns `at`,
        those of `COUNTED` since the sample before, and of `HELD` at that time."""
        with self._lock:
            found = [_row(None, "all processes", self._sums)]
            if len(self._series) > 1:
                found += [_row(pid, s.title, s.samples) for pid, s in self._series.items()]
            return found

    def _counted(self, process: Process) -> Numbers:
        """Return what a process has counted since it answered last: of one that is seen for the
        first time nothing, unless it has just begun."""
        pid, requests = process["pid"], process["stats"]["requests"]
        now = tuple(float(requests[name]) for name in COUNTED)
        before = self._totals.get(pid)
        self._totals[pid] = now
        if before is None:
            began = process["uptime_seconds"] <= SAMPLE_SECONDS
            return now if began else tuple(0.0 for _ in now)
        if now[0] < before[0]:
            # Another process has the number now.
            return now
        return tuple(b - a for a, b in zip(before, now, strict=True))

    def _forget_beyond(self, now: float) -> None:
        for samples in (self._sums, *(one.samples for one in self._series.values())):
            while samples and samples[-1].at > now:
                samples.pop()
        self._series = {pid: one for pid, one in self._series.items() if one.samples}

    def _note(self, process: Process, sample: Sample) -> None:
        pid = process["pid"]
        known = self._series.get(pid)
        if known is None:
            if len(self._series) >= PROCESSES:
                return
            known = self._series[pid] = Series(process["title"], deque(maxlen=SAMPLES))
        known.samples.append(sample)


def _held(process: Process) -> Numbers:
    tiers = (process["stats"][name] for name in ("hot", "cold"))
    return tuple(0.0 if tier is None else float(tier["nbytes"]) for tier in tiers)


def _held_by_all(processes: Iterable[Process]) -> Numbers:
    hot = 0.0
    cold: dict[object, float] = {}
    for process in processes:
        in_memory, on_disk = _held(process)
        hot += in_memory
        directory = process["cold_dir"]
        cold[directory] = max(on_disk, cold.get(directory, 0.0))
    return hot, sum(cold.values())


def _added(samples: Iterable[Numbers]) -> Numbers:
    return tuple(map(sum, zip(*samples, strict=True))) or tuple(0.0 for _ in COUNTED)


def _row(pid: object, title: str, samples: Iterable[Sample]) -> Document:
    kept = list(samples)
    columns: dict[str, object] = {"at": [round(sample.at, 1) for sample in kept]}
    for at, name in enumerate(COUNTED):
        columns[name] = [round(sample.counted[at], 3) for sample in kept]
    for at, name in enumerate(HELD):
        columns[name] = [int(sample.held[at]) for sample in kept]
    return {"pid": pid, "title": title, **columns}
