"""What the eviction policies have learned, kept from one process to the next."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from omlx_cache.upkeep.aside import Aside
from omlx_cache_storage.cold.reuse import Reuse, write_reuse
from omlx_cache_storage.cold.temporary import TemporaryNames
from omlx_cache_storage.interrupts import uninterrupted

PAUSE_SECONDS = 60.0
"""A policy changes its mind slowly: what a killed process had learned since is no loss."""


class ReuseKeeper:
    """Writes what the policies of a store have learned, when that is news, on a thread of its own.
    Any thread may call; nothing raises.

    `known` is what was read at the start: a tier that learns nothing leaves its part as it was.
    """

    def __init__(
        self, learned: Callable[[], Reuse], cold_dir: Path | None, known: Reuse | None = None
    ) -> None:
        self._learned = learned
        self._cold_dir = cold_dir
        self._known = known or Reuse()
        self._names = TemporaryNames()
        self._aside = Aside("omlx-cache-reuse", "what was learned of reuse is not kept")

    @uninterrupted
    def step(self) -> None:
        """Have what was learned written, once a minute at most; returns at once."""
        if self._cold_dir is not None and self._aside.is_free:
            self._keep(self._cold_dir)

    @uninterrupted
    def close(self, timeout: float) -> None:
        """Keep what was learned since, and end the thread; within `timeout` seconds."""
        if self._cold_dir is not None:
            self._keep(self._cold_dir)
        self._aside.close(timeout)

    def _keep(self, cold_dir: Path) -> None:
        if self._news() != self._known:
            self._aside.start(partial(self._write, cold_dir), PAUSE_SECONDS)

    def _news(self) -> Reuse:
        learned = self._learned()
        return Reuse(learned.memory or self._known.memory, learned.disk or self._known.disk)

    def _write(self, cold_dir: Path) -> None:
        news = self._news()
        if write_reuse(cold_dir, news, self._names):
            self._known = news
