"""Timing: medians of several runs, the compared things taken in turn."""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

Work = Callable[[], object]


def seconds(work: Work) -> float:
    """Return the seconds of one run; what it returns is freed outside the measured time."""
    began = time.perf_counter()
    result = work()
    ended = time.perf_counter()
    del result
    return ended - began


def in_turn(
    works: Mapping[str, Work],
    runs: int,
    before: Work | None = None,
    take: Callable[[Sequence[float]], float] = median,
) -> dict[str, float]:
    """Return the median seconds of each, or what `take` makes of them, after one run that is not
    counted.

    All are run once before any is run again, so that a slow moment of the machine hits all.
    `before` precedes every run and is not counted.
    """
    spent: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(runs + 1):
        for name, work in works.items():
            if before is not None:
                before()
            spent[name].append(seconds(work))
    return {name: take(times[1:]) for name, times in spent.items()}
