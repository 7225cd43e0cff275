"""The rates at which models compute, kept from one process to the next."""

from functools import partial
from pathlib import Path

from omlx_cache.upkeep.aside import Aside
from omlx_cache_storage.cold.rates import KeptRate, read_rates, write_rate
from omlx_cache_storage.cold.temporary import TemporaryNames
from omlx_cache_storage.interrupts import uninterrupted
from omlx_cache_storage.work import WorkMeter

PAUSE_SECONDS = 5.0
"""How long the thread is left alone at least: a namespace may come to the disk later than a rate,
and a disk may refuse."""


class RateKeeper:
    """Reads the rates of a cold directory at start, and keeps what is measured; on a thread of its
    own, which may wait for the disk. Any thread may call; nothing raises."""

    def __init__(self, work: WorkMeter, cold_dir: Path | None) -> None:
        self._work = work
        self._cold_dir = cold_dir
        self._names = TemporaryNames()
        self._aside = Aside("omlx-cache-rates", "the rates of models are not kept")
        if cold_dir is not None:
            self._aside.start(partial(self._read, cold_dir), PAUSE_SECONDS)

    @uninterrupted
    def step(self) -> None:
        """Have what has become worth keeping written; returns at once."""
        if self._cold_dir is not None and self._aside.is_free:
            self._keep(self._cold_dir, all_of_them=False)

    @uninterrupted
    def close(self, timeout: float) -> None:
        """Keep what was measured since, and end the thread; within `timeout` seconds."""
        if self._cold_dir is not None:
            self._keep(self._cold_dir, all_of_them=True)
        self._aside.close(timeout)

    def _keep(self, cold_dir: Path, *, all_of_them: bool) -> None:
        if self._work.unsaved(all_of_them=all_of_them):
            call = partial(self._write, cold_dir, all_of_them=all_of_them)
            self._aside.start(call, PAUSE_SECONDS)

    def _read(self, cold_dir: Path) -> None:
        for kept in read_rates(cold_dir):
            self._work.know(kept.model, kept.rate)

    def _write(self, cold_dir: Path, *, all_of_them: bool) -> None:
        for unsaved in self._work.unsaved(all_of_them=all_of_them):
            kept = KeptRate(unsaved.model, unsaved.rate)
            if write_rate(cold_dir, unsaved.namespace, kept, self._names):
                self._work.saved(unsaved)
