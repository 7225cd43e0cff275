"""Trying a target many times: seeded inputs, one after the other, each watched.

Every input follows from (target, seed, number), so that a finding is one command away.
"""

import contextlib
import functools
import resource
import signal
import sys
import time
import traceback
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from .mutate import spoil_bytes
from .target import Target

WATCHED_EVERY = 50
"""Every how many inputs the allocations are counted: Python's own count takes its time."""
HANG_SECONDS = 30
_RANDOM, _BLIND = 0.05, 0.35
"""Shares of inputs that are noise, and of those whose bytes are spoilt without their structure."""


class Hang(Exception):
    """An input kept the processor busy for `HANG_SECONDS`."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An input that did what no input may."""

    number: int
    data: bytes
    what: str


@dataclass(slots=True)
class Report:
    """What a run did. `slowest` in seconds, `peak` in bytes over the input's share."""

    target: str
    count: int = 0
    accepted: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    watched: int = 0
    peak: int = 0
    grown: int = 0
    findings: list[Finding] = field(default_factory=list)

    def line(self) -> str:
        """Return the report on one line."""
        return (
            f"{self.target:10} {self.count:9,} inputs, {self.accepted:8,} accepted, "
            f"{self.count / max(self.seconds, 1e-9):8,.0f}/s, "
            f"slowest {1000 * self.slowest:6.1f} ms, "
            f"peak {self.peak / 2**20:6.2f} MiB over the input, process +{self.grown / 2**20:.0f} "
            f"MiB, {len(self.findings)} findings"
        )


def run(
    target: Target,
    count: int,
    seed: int = 0,
    *,
    first: int = 0,
    corpus: Sequence[bytes] = (),
    limit: int = 10,
) -> Report:
    """Try inputs `first` to `first + count` and return what happened; stops at `limit` findings."""
    report = Report(target.name)
    begun, before = time.perf_counter(), _resident()
    for data in corpus:
        _try(target, -1, data, report, watched=True)
    for number in range(first, first + count):
        if len(report.findings) >= limit:
            break
        data = make_input(target, seed, number, corpus)
        _try(target, number, data, report, watched=number % WATCHED_EVERY == 0)
    report.seconds = time.perf_counter() - begun
    report.grown = max(0, _resident() - before)
    return report


def make_input(target: Target, seed: int, number: int, corpus: Sequence[bytes] = ()) -> bytes:
    """Return one input; the same for the same arguments."""
    rng = Random(f"{target.name} {seed} {number}")
    samples = [*_samples(target), *corpus]
    if number < len(samples):
        return samples[number]
    sample, kind = rng.choice(samples), rng.random()
    if kind < _RANDOM:
        return rng.randbytes(rng.choice((0, 1, 4, 8, 64, 1024)))
    if kind < _BLIND:
        return spoil_bytes(rng, sample)
    try:
        return target.vary(rng, sample)
    except RecursionError:
        # A change put a value into itself until nobody could write it.
        return spoil_bytes(rng, sample)


@functools.cache
def _samples(target: Target) -> tuple[bytes, ...]:
    return tuple(target.samples())


def _try(target: Target, number: int, data: bytes, report: Report, *, watched: bool) -> None:
    report.count += 1
    if watched:
        report.watched += 1
        tracemalloc.start()
    began = time.thread_time()
    try:
        with _ended_when_stuck():
            report.accepted += target.one(data)
    except Exception:
        report.findings.append(Finding(number, data, traceback.format_exc(limit=-12)))
    taken = time.thread_time() - began
    if watched:
        over = tracemalloc.get_traced_memory()[1] - target.factor * len(data)
        tracemalloc.stop()
        if over > target.constant:
            over = min(over, _least(target, data))
        report.peak = max(report.peak, over)
        if over > target.constant:
            what = f"took {over} bytes over the input, {target.constant} were granted"
            report.findings.append(Finding(number, data, what))
        return
    report.slowest = max(report.slowest, taken)
    if taken > target.seconds:
        report.findings.append(Finding(number, data, f"took {taken:.1f} s"))


def _least(target: Target, data: bytes, tries: int = 3) -> int:
    """Return the least of what the input takes, in bytes over its share: the count is of the whole
    process, and a thread of an earlier test may allocate beside it, but not every time."""
    least = sys.maxsize
    for _ in range(tries):
        tracemalloc.start()
        with contextlib.suppress(Exception), _ended_when_stuck():
            target.one(data)
        least = min(least, tracemalloc.get_traced_memory()[1] - target.factor * len(data))
        tracemalloc.stop()
    return least


@contextlib.contextmanager
def _ended_when_stuck() -> Iterator[None]:
    """Raise Hang in the block once it has used its time; main thread only."""
    signal.setitimer(signal.ITIMER_VIRTUAL, HANG_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


@contextlib.contextmanager
def hangs_end() -> Iterator[None]:
    """Let the watch end an input that hangs; outside of it a hang ends the process."""

    def stop(*_: object) -> None:
        raise Hang(f"no answer after {HANG_SECONDS} s of the processor")

    before = signal.signal(signal.SIGVTALRM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGVTALRM, before)


def read_corpus(directory: Path | None, target: Target) -> list[bytes]:
    """Return the inputs that are kept for a target."""
    if directory is None or not (directory / target.name).is_dir():
        return []
    return [path.read_bytes() for path in sorted((directory / target.name).iterdir())]


def keep(directory: Path, target: Target, finding: Finding) -> Path:
    """Write a finding's input into the corpus and return its path."""
    folder = directory / target.name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"input-{finding.number}"
    path.write_bytes(finding.data)
    return path


def limit_memory(nbytes: int) -> None:
    """Let this process take `nbytes` more than now, where the system can: a bomb is a finding."""
    pages = Path("/proc/self/statm")
    if pages.exists():
        now = int(pages.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + nbytes, now + nbytes))


def _resident() -> int:
    """Return the most memory that this process ever had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
