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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from kit.units import KIB

from .mutate import spoil_bytes

MESSAGE_LIMIT = 4 * KIB
"""What an error may say: it goes into a log line."""
WATCHED_EVERY = 50
"""Every how many inputs the allocations are counted: Python's own count takes its time."""
HANG_SECONDS = 30
_RANDOM, _BLIND = 0.05, 0.35
"""Shares of inputs that are noise, and of those whose bytes are spoilt without their structure."""


@dataclass(frozen=True, slots=True)
class Target:
    """One reader of foreign bytes.

    `one` returns whether it accepted an input; it ends an error of the declared family itself, so
    that whatever it raises is a finding. It may take `constant` bytes more than `factor` times the
    input, and `seconds` of the processor. `share` of a count is enough where an input is dear.
    """

    name: str
    samples: Callable[[], Sequence[bytes]]
    vary: Callable[[Random, bytes], bytes]
    one: Callable[[bytes], bool]
    constant: int
    factor: int = 1
    seconds: float = 2.0
    share: float = 1.0


def refused(error: Exception, quoted: int = 0) -> bool:
    """Check a declared error, which may quote so many bytes; return what `one` returns for it."""
    length = len(str(error))
    assert length <= MESSAGE_LIMIT + 6 * quoted, f"a message of {length} characters"
    return False


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
    """What a run did."""

    count: int = 0
    accepted: int = 0
    findings: list[Finding] = field(default_factory=list)


def run(target: Target, count: int, seed: int = 0, first: int = 0, limit: int = 10) -> Report:
    """Try inputs `first` to `first + count` and return what happened; stops at `limit` findings."""
    report = Report()
    for number in range(first, first + count):
        if len(report.findings) >= limit:
            break
        data = make_input(target, seed, number)
        report.count += 1
        began = time.thread_time()
        try:
            with _ended_when_stuck():
                report.accepted += target.one(data)
        except Exception:
            report.findings.append(Finding(number, data, traceback.format_exc(limit=-12)))
            continue
        taken = time.thread_time() - began
        if taken > target.seconds:
            report.findings.append(Finding(number, data, f"took {taken:.1f} s"))
        if number % WATCHED_EVERY == 0:
            over = _bytes_over(target, data)
            if over > target.constant:
                what = f"took {over} bytes over the input, {target.constant} were granted"
                report.findings.append(Finding(number, data, what))
    return report


def make_input(target: Target, seed: int, number: int) -> bytes:
    """Return one input; the same for the same arguments."""
    rng, samples = Random(f"{target.name} {seed} {number}"), _samples(target)
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


def _bytes_over(target: Target, data: bytes, tries: int = 3) -> int:
    """Return what an input takes, in bytes over its share. The least of a few tries: the count is
    of the whole process, and a thread of an earlier test may allocate beside it, but not always."""
    least = sys.maxsize
    for _ in range(tries):
        tracemalloc.start()
        with contextlib.suppress(Exception), _ended_when_stuck():
            target.one(data)
        least = min(least, tracemalloc.get_traced_memory()[1] - target.factor * len(data))
        tracemalloc.stop()
        if least <= target.constant:
            break
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


def limit_memory(nbytes: int) -> None:
    """Let this process take `nbytes` more than now, where the system can: a bomb is a finding."""
    pages = Path("/proc/self/statm")
    if pages.exists():
        now = int(pages.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + nbytes, now + nbytes))
