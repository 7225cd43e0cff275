"""The tokens of one model that a store's budgets hold, and the budget that is too small for it."""

import logging
from typing import NamedTuple

from omlx_cache.settings import CacheSettings
from omlx_cache.settings.sizes import format_size
from omlx_cache_storage.page import PAGED
from omlx_cache_storage.tiers import Tiers

_log = logging.getLogger(__name__)

FILE_BYTES = 16 * 1024 + 2 * (4096 + 256)
"""Bytes that a page's file takes beside its payload: header, last block, name, and a shard of its
own, as most of the first pages have."""
DIRECTORY_BYTES = 128 * 1024
"""Bytes that the directories and the ledger take; the tier reserves them for directories that a
write may make. In a large directory the ledger takes a `LEDGER_SHARE`."""
LEDGER_SHARE = 1000
_UNITS = ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB"))


class Fit(NamedTuple):
    """How many tokens of a sequence stay restorable, and the setting that says so; `in_memory` of
    them for as long as nothing else wants the memory."""

    tokens: int
    setting: str
    in_memory: int


class Budgets:
    """Learns a model's page size from its commits, and logs once each budget that is too small for
    a page, or for a sequence that came.

    Mutable by the model's thread: `_block_bytes` (of the pages that every token needs),
    `_point_bytes` (of a restore point's other pages, by group), and `told`, which budgets share:
    the settings that were logged, each with the model. Others may read `fit`.
    """

    def __init__(
        self,
        settings: CacheSettings,
        label: str,
        told: set[tuple[str, str]],
        tiers: Tiers,
    ) -> None:
        self._settings = settings
        self._label = label
        self._told = told
        self._tiers = tiers
        self._block = settings.block_size
        self._memory = settings.hot_bytes or settings.queue_bytes
        self._memory_name = "hot_bytes" if settings.hot_bytes else "queue_bytes"
        self._is_derived = settings.is_derived("cold_bytes")
        self._is_empty = bool(settings.empty_budgets())
        self._block_bytes = 0
        self._point_bytes: dict[str, int] = {}

    def page(self, group: str, tokens: int, nbytes: int) -> None:
        if group == PAGED and tokens == self._block:
            self._block_bytes = nbytes
        elif group != PAGED:
            self._point_bytes[group] = max(nbytes, self._point_bytes.get(group, 0))
        # A page larger than the queue has it for itself.
        if nbytes > self._memory:
            what = f"{tokens} tokens" if tokens else "recurrent state"
            self._tell(
                self._memory_name,
                f"{self._memory_name} ({format_size(self._memory)}) is smaller than one page of "
                f"{self._label} ({format_size(nbytes)} for {what}): none is kept; "
                f"{self._memory_name}={enough(16 * nbytes)} would hold some",
            )

    @property
    def _cold(self) -> int:
        """How far the directory may fill up before this process stops writing."""
        tier, own = self._tiers.cold, self._settings.cold_bytes
        if tier is None:
            return own
        # Other processes and people change the directory's budget; a limit that follows from the
        # free space yields to it.
        return tier.limit_bytes if self._is_derived else min(tier.limit_bytes, own)

    @property
    def token_bytes(self) -> int:
        """The bytes of a token in the pages that every token needs; 0 before one was seen."""
        return self._block_bytes // self._block

    def fit(self) -> Fit | None:
        """Return how much of the longest sequence can be kept; None before a block was seen."""
        if not self._block_bytes:
            return None
        here = self._settings.hot_bytes // self._block_bytes * self._block
        if self._block_bytes > self._memory:
            return Fit(0, self._memory_name, here)
        if self._settings.hot_cache_only:
            return Fit(self._memory // self._block_bytes * self._block, self._memory_name, here)
        blocks = max(0, self._cold - DIRECTORY_BYTES) // (self._block_bytes + FILE_BYTES)
        return Fit(blocks * self._block, "cold_bytes", here)

    def sequence(self, tokens: int, *, lost: bool = False) -> None:
        """Note a sequence that was handed over in full; `lost`: some of it found no room."""
        fit, own = self.fit(), self._settings
        if fit is None or self._is_empty:
            # The store said so when it opened, and for a disk without room no size would help.
            return
        name, size = fit.setting, self._memory if own.hot_cache_only else self._cold
        if tokens // self._block * self._block > fit.tokens:
            known = (
                f"holds about {fit.tokens} tokens of {self._label} "
                f"({format_size(self._block_bytes)} for {self._block})"
            )
        elif lost and self._needed(tokens) > size:
            known = f"is too small for windows and states of {self._label} beside its blocks"
        else:
            return
        needed = enough(self._needed(tokens))
        called, helps = name, f"{name}={needed}"
        if name == "cold_bytes":
            helps = f"{needed}: `omlx-cache doctor` says what budget holds all"
            if size != own.cold_bytes:
                # The directory's budget counts, not this process's own setting.
                called = "the directory's budget"
        self._tell(
            name,
            f"{called} ({format_size(size)}) {known}: of a sequence of {tokens} tokens "
            f"the end is not kept; it needs {helps}",
        )

    def _needed(self, tokens: int) -> int:
        in_memory = self._settings.hot_cache_only
        overhead = 0 if in_memory else FILE_BYTES
        blocks = -(-tokens // self._block)
        # One each stride, a few around the end; a window may lie in two pages for each.
        points = 2 * (tokens // self._settings.snapshot_stride + 4)
        at_each = sum(nbytes + overhead for nbytes in self._point_bytes.values())
        size = blocks * (self._block_bytes + overhead) + points * at_each
        return size if in_memory else size + size // LEDGER_SHARE + DIRECTORY_BYTES

    def _tell(self, setting: str, text: str) -> None:
        if (self._label, setting) not in self._told:
            self._told.add((self._label, setting))
            _log.warning(text)


def enough(nbytes: int) -> str:
    """Return a size of at least so many bytes, short, as a setting takes it: `2.1GiB`."""
    unit, name = next(
        ((2**power, name) for power, name in _UNITS if nbytes >= 2**power), (1024, "KiB")
    )
    tenths = -(-10 * nbytes // unit)
    return f"{tenths / 10:g}{name}" if tenths < 100 else f"{-(-tenths // 10)}{name}"
