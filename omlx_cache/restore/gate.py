"""Whether a restore reads: not where the latest reads took clearly longer than computing."""

import threading
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from omlx_cache import reasons
from omlx_cache.settings.sizes import duration
from omlx_cache_storage.calls import uninterrupted
from omlx_cache_storage.measures import WorkMeter
from omlx_cache_storage.page import COLD, REMOTE

CLEARLY = 1.25
"""Computing must be so many times faster: it takes the device from other requests."""
LEAST_SECONDS = 0.05
"""Seconds of a difference that no user would notice: no reason to compute."""
PROBE_EVERY = 8
"""One in so many restores that would be rejected reads all the same: the link may be free."""
READS = 3
"""The fastest of the latest reads counts, and fewer are no evidence: one may have been slow."""
REMEMBERED = 16
LARGER = 4
"""A read says nothing of one that is more than so many times as large: opening files takes time."""


class Finished(NamedTuple):
    nbytes: int
    seconds: float


class ReadingGate:
    """Compares reading with computing, by the latest of both; unknown rates reject nothing. Any
    thread may call; nothing blocks or raises. `_lock` guards `_reads` (the latest by tier) and
    `_rejected` (restores since the latest probe)."""

    def __init__(self, work: WorkMeter) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._reads: dict[str, deque[Finished]] = {
            tier: deque(maxlen=REMEMBERED) for tier in (COLD, REMOTE)
        }
        self._rejected = 0

    @uninterrupted
    def note(self, nbytes: int, seconds: float, read: Mapping[str, int]) -> None:
        """Note a restore of `nbytes`, of which tiers gave `read`: it tells of a tier that gave
        half."""
        with self._lock:
            for tier, size in read.items():
                if 2 * size >= nbytes > 0 and seconds > 0:
                    self._reads[tier].append(Finished(size, seconds))

    @uninterrupted
    def probe(self) -> bool:
        """Note a rejection; return whether it reads in spite of that."""
        with self._lock:
            self._rejected = (self._rejected + 1) % PROBE_EVERY
            return self._rejected == 0

    @uninterrupted
    def slower(self, model: str, tokens: int, nbytes: Mapping[str, int]) -> str:
        """Return the miss reason if reading so many bytes of each tier takes clearly longer than
        computing so many tokens, else ""."""
        rate = self._work.rate(model)
        if rate is None:
            return ""
        computing, reading = tokens / rate, 0.0
        for tier, size in nbytes.items():
            with self._lock:
                telling = [r for r in self._reads[tier] if r.nbytes * LARGER >= size][-READS:]
            if len(telling) < READS:
                return ""
            reading += size * min(read.seconds / read.nbytes for read in telling)
        if reading < CLEARLY * computing or reading - computing < LEAST_SECONDS:
            return ""
        return (
            f"{reasons.SLOWER_THAN_COMPUTING}:{tokens:,} tokens, about "
            f"{duration(reading)} to read and {duration(computing)} to compute"
        )


class RestoreGate:
    """Answers for one restore, as often as it looks; any thread may call. Without `probes` it is no
    probe, for a lookup that restores nothing. `_probing` is decided for good when it would be
    rejected first."""

    def __init__(self, gate: ReadingGate, model: str, *, probes: bool = True) -> None:
        self.shared = gate
        self._model = model
        self._probes = probes
        self._probing: bool | None = None

    def rejects(self, tokens: int, nbytes: Mapping[str, int]) -> str:
        """Return why so many bytes of each tier are not read for so many tokens; "" to read."""
        reason = "" if self._probing else self.shared.slower(self._model, tokens, nbytes)
        if reason and self._probes and self._probing is None:
            self._probing = self.shared.probe()
        return "" if self._probing else reason
