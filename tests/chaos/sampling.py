"""Looks at a store's budgets many times a second, from a thread of its own."""

import contextlib
import threading
from collections.abc import Iterator

import mlx.core as mx

from kit.storage import disk_usage

from .world import KIB, World

PERIOD = 0.02
PER_THREAD_BYTES = 12 * 1024 * KIB
"""More than one thread's live caches, restores and comparisons take at these sizes."""


class Sampler:
    """Samples until it is stopped; `stop` waits for the last sample."""

    def __init__(self, world: World, threads: int) -> None:
        self._world = world
        self._allowance = threads * PER_THREAD_BYTES + mx.get_active_memory()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-sampler", daemon=True)
        self._samples = 0
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(60)
        self._world.tally.add(samples=self._samples)

    def _run(self) -> None:
        while not self._ended.wait(PERIOD):
            self.sample()

    def sample(self) -> None:
        world, store = self._world, self._world.store
        stats = store.stats()
        self._samples += 1
        self._check("hot tier", stats.hot.nbytes, stats.hot.limit_bytes)
        self._check("hot tier's peak", stats.hot.peak_bytes, stats.hot.limit_bytes)
        self._check("snapshots' peak", stats.snapshots.peak_bytes, store.snapshot_bytes)
        self._check("restores' peak", store.restores.peak_bytes, store.restores.limit_bytes)
        memory = stats.hot.limit_bytes + store.snapshot_bytes + store.restores.limit_bytes
        self._check("MLX's active memory", mx.get_active_memory(), memory + self._allowance)
        if stats.writer is not None:
            self._check("queue's peak", stats.writer.peak_bytes, stats.writer.limit_bytes)
        if stats.cold is not None:
            self._check("cold tier", stats.cold.nbytes, stats.cold.limit_bytes)
            self._check("cold tier's peak", stats.cold.peak_bytes, stats.cold.limit_bytes)
            with contextlib.suppress(OSError):
                self._check("disk, by du", disk_usage(world.cold_dir), stats.cold.limit_bytes)

    def _check(self, what: str, nbytes: int, limit: int) -> None:
        if nbytes > limit:
            self._world.fail("over", f"{what}: {nbytes} of {limit} bytes")


@contextlib.contextmanager
def sampled(world: World, threads: int) -> Iterator[None]:
    """Sample the budgets of a world's store while the block runs, and once at its end."""
    sampler = Sampler(world, threads)
    try:
        yield
    finally:
        sampler.stop()
        sampler.sample()
