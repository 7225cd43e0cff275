"""One round's surroundings: a directory, a store that may be opened again, and its budgets."""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx

from kit.storage import disk_usage, open_store
from kit.units import KIB
from omlx_cache import BlockStore
from omlx_cache_storage.cold.disk import FileSystem

from .tally import Tally, Verdict

BLOCK = 16
CLOSE_SECONDS = 20.0
FLUSH_SECONDS = 30.0
PERIOD = 0.02
PER_THREAD_BYTES = 12 * 1024 * KIB
"""More than one thread's live caches, restores and comparisons take at these sizes."""


def small_options(draw: random.Random) -> dict[str, Any]:
    """Return settings of a store that a round's sequences exceed ten times and more."""
    choose = draw.choice
    return {
        "block_size": BLOCK,
        "hot_bytes": choose([0, 96 * KIB, 256 * KIB, 640 * KIB]),
        "hot_cache_only": draw.random() < 0.08,
        "queue_bytes": choose([32 * KIB, 96 * KIB, 384 * KIB]),
        "cold_bytes": choose([720 * KIB, 1320 * KIB, 1920 * KIB]),
        "restore_bytes": choose([64 * KIB, 4096 * KIB]),
        "write_policy": choose(["through", "lazy"]),
        "commit_wait_seconds": choose([0, 0.02, 86400, 86400]),
        "snapshot_stride": choose([16, 32, 64]),
        "durability": choose(["none", "none", "fsync"]),
        "cold_codec": choose(["dense", "dense", "zstd"]),
    }


def roomy_options(draw: random.Random) -> dict[str, Any]:
    """Return settings under which nothing has to leave the disk, whatever memory does."""
    return {
        **small_options(draw),
        "hot_cache_only": False,
        "cold_bytes": 512 * 1024 * KIB,
        "write_policy": draw.choice(["through", "lazy"]),
    }


class World:
    """What a round has. The thread that runs the round owns it; others only read `store`."""

    def __init__(
        self,
        fault: str,
        number: int,
        seed: int,
        tally: Tally,
        directory: Path,
        *,
        sessions: int = 150,
        grace: float = 2.0,
    ) -> None:
        self.fault, self.number, self.seed = fault, number, seed
        self.tally = tally
        self.directory = directory
        self.sessions = sessions
        self.grace = grace
        self.interrupt: Callable[[], contextlib.AbstractContextManager[None]] = (
            contextlib.nullcontext
        )
        self.draw = self.random("round")
        self.options: dict[str, Any] = {}
        self._closed: list[BlockStore] = []
        self.disk: FileSystem | None = None
        self.store: BlockStore

    @property
    def cold_dir(self) -> Path:
        return self.directory / "cold"

    def random(self, *names: object) -> random.Random:
        """Return a generator of its own for a part of the round."""
        return random.Random(":".join(map(str, (self.seed, self.fault, self.number, *names))))

    def open(self) -> BlockStore:
        with self.timed("open", 0.0):
            options = dict(self.options)
            # No setting of a store.
            restore_bytes = options.pop("restore_bytes", 4096 * KIB)
            self.store = open_store(self.cold_dir, self.disk, **options)
            self.store.restores.limit_bytes = restore_bytes
        return self.store

    def close(self) -> bool:
        """Close the store, within its deadline."""
        self._closed.append(self.store)
        with self.timed("close", CLOSE_SECONDS):
            return self.store.close(CLOSE_SECONDS)

    def check_closed(self) -> None:
        """Look for what stores did not let go of, when nobody has a session any more."""
        for store in self._closed:
            requests, snapshots = store.stats().requests, store.stats().snapshots
            for name, held in (
                ("bytes in the hot tier", store.hot.usage().nbytes),
                ("bytes of restores", store.restores.nbytes),
                ("sessions", requests.live_sessions),
                ("bytes of snapshots", snapshots.live_bytes),
            ):
                if held:
                    self.fail("left", f"{held} {name} after close")
            store.hot.check_integrity()
        self._closed.clear()

    def reopen(self) -> BlockStore:
        self.close()
        return self.open()

    @contextlib.contextmanager
    def timed(self, call: str, allowed: float) -> Iterator[None]:
        """Time a call of the store's; longer than allowed, and some grace, is stuck."""
        began = time.monotonic()
        try:
            yield
        finally:
            late = time.monotonic() - began - allowed
            if late > self.grace:
                self.fail("stuck", f"{call} took {late:.1f} s more than the {allowed:.2f} allowed")

    def count(self, amount: int = 1) -> None:
        self.tally.count(self.fault, amount)

    def fail(self, verdict: Verdict, what: str) -> None:
        repeat = f"python -m qa.chaos --seed {self.seed} --only '{self.fault}:{self.number}'"
        if self.options:
            what += f" ({', '.join(f'{k}={v}' for k, v in sorted(self.options.items()))})"
        self.tally.fail(self.fault, verdict, what, repeat)


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
