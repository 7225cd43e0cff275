"""Measures memory and time of MLX work in this process, step by step."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import mlx.core as mx

MB = 1e6


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: what was measured, for how many tokens, and the figures by name.

    Names end with their unit; MB are 10^6 bytes.
    """

    section: str
    tokens: int
    variant: str
    figures: Mapping[str, float]


class Probe:
    """Counts from its construction on: what is alive then is not in its figures.

    Mutable: the step times and the footprint. One at a time per process, because MLX's
    peak counter is the process's.
    """

    def __init__(self) -> None:
        settle()
        self._base = mx.get_active_memory()
        self._footprint = 0
        self._times: list[float] = []
        mx.reset_peak_memory()

    def step(self, work: Callable[[], None]) -> None:
        """Run `work`, which evaluates what it computes, and record its time."""
        begin = time.perf_counter()
        work()
        self._times.append(time.perf_counter() - begin)
        held = mx.get_active_memory() + mx.get_cache_memory()
        self._footprint = max(self._footprint, held - self._base)

    def restart_clock(self) -> None:
        """Forget the step times; memory goes on."""
        self._times = []

    @property
    def active_mb(self) -> float:
        return (mx.get_active_memory() - self._base) / MB

    @property
    def peak_mb(self) -> float:
        """Highest live memory; the allocator's own cache is not in it."""
        # The counter is 0 until something is allocated.
        return (max(mx.get_peak_memory(), mx.get_active_memory()) - self._base) / MB

    @property
    def footprint_mb(self) -> float:
        """Highest live memory plus the allocator's cache, seen after a step."""
        return self._footprint / MB

    @property
    def worst_ms(self) -> float:
        return max(self._times) * 1e3

    @property
    def median_ms(self) -> float:
        return statistics.median(self._times) * 1e3

    @property
    def total_s(self) -> float:
        return sum(self._times)


def settle() -> None:
    """Free what nobody refers to, the allocator's cache included."""
    mx.synchronize()
    gc.collect()
    mx.clear_cache()
