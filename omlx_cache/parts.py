"""What a store is made of and how that ends, apart from the store: it may be lost before."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from omlx_cache.control import ControlServer
from omlx_cache.flights import Flights
from omlx_cache.restore.queue import RestoreQueue
from omlx_cache.upkeep.directory import ReuseKeeper
from omlx_cache.upkeep.memory import Relief
from omlx_cache_storage.prefetch import Prefetcher
from omlx_cache_storage.readers import DiskThread, ReaderPool
from omlx_cache_storage.remote.uploads import Uploads
from omlx_cache_storage.tiers import Tiers

if TYPE_CHECKING:
    from omlx_cache.status.server import StatusServer
    from omlx_cache_storage.remote.tier import RemoteTier

THREADS_SECONDS = 1.0
"""How long `close` waits at most for reads that a disk does not answer."""


@dataclass(eq=False, slots=True)
class StoreParts:
    """The tiers, threads and socket of one store; none of them refers to the store.

    `ended` is True once `close` has done all that it can. Any thread may call.
    """

    tiers: Tiers
    relief: Relief
    pools: Sequence[ReaderPool | DiskThread]
    prefetcher: Prefetcher
    restores: RestoreQueue
    control: ControlServer | None
    reuse: ReuseKeeper
    remote: "RemoteTier | None"
    uploads: Uploads | None
    flights: Flights
    status: list["StatusServer"] = field(default_factory=list)
    pid: int = field(default_factory=os.getpid)
    ended: bool = False

    def settle(self) -> None:
        """Give back what lost sessions and lost restores held, which may hold the store; have
        kept what was learned."""
        self.restores.settle()
        self.flights.settle()
        self.tiers.counters.requests()
        self.reuse.step()

    def close(self, timeout: float) -> bool:
        """Write what is pending, end the threads, remove the socket, free the hot tier; within
        `timeout` seconds. False when that was not enough to write everything.

        Each step may be done again, by several at once: whoever was interrupted is followed by
        the next.
        """
        deadline = time.monotonic() + timeout

        def left() -> float:
            return max(0.0, deadline - time.monotonic())

        self.tiers.end_soon()
        self.prefetcher.cancel_all()
        for server in list(self.status):
            server.close(min(left(), THREADS_SECONDS))
        clean = self.tiers.flush(left())
        if self.control is not None:
            self.control.close(left())
        if self.uploads is not None:
            self.uploads.close(left())
        clean = self.tiers.stop_writing(left()) and clean
        self.reuse.close(min(left(), THREADS_SECONDS))
        # What is still being read is of no use to anybody.
        deadline = min(deadline, time.monotonic() + THREADS_SECONDS)
        self.restores.shutdown(left())
        self.prefetcher.shutdown(left())
        for pool in self.pools:
            pool.stop(left())
        if self.remote is not None:
            self.remote.close(left())
        self.tiers.hot.close()
        self.ended = True
        return clean
