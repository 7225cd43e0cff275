"""What a store's budgets hold of one model, and which of them is too small for it."""

import logging
from typing import NamedTuple

from omlx_cache.settings import CacheSettings
from omlx_cache.settings.sizes import format_size

_log = logging.getLogger(__name__)

FILE_BYTES = 16 * 1024 + 4096 + 256
"""What a page's file takes beside its payload: header, last block, name."""
DIRECTORY_BYTES = 64 * 1024
"""What the directories take, and the tier sets aside for those that a write may make."""


class Fit(NamedTuple):
    """How many tokens of a sequence can be kept at most, and the setting that says so."""

    tokens: int
    setting: str


class Budgets:
    """Learns a model's page size from its commits, and logs each budget that is too small for it,
    once: smaller than a page, or than a sequence that came.

    Mutable by the model's thread: `_block_bytes` (of the pages that every token needs), `_told`.
    Others may read `fit`.
    """

    def __init__(self, settings: CacheSettings, label: str) -> None:
        self._label = label
        self._block = settings.block_size
        self._memory = settings.hot_bytes or settings.queue_bytes
        self._memory_name = "hot_bytes" if settings.hot_bytes else "queue_bytes"
        self._cold = None if settings.hot_cache_only else settings.cold_bytes
        self._queue = self._memory if self._cold is None else settings.queue_bytes
        self._block_bytes = 0
        self._told: set[str] = set()

    def page(self, kind: str, tokens: int, nbytes: int) -> None:
        """Note a page of a layer group's kind that is about to be stored."""
        if kind == "paged" and tokens == self._block:
            self._block_bytes = nbytes
        for name, size in ((self._memory_name, self._memory), ("queue_bytes", self._queue)):
            if nbytes > size:
                what = f"{tokens} tokens" if tokens else "recurrent state"
                self._tell(
                    name,
                    f"{name} ({format_size(size)}) is smaller than one page of {self._label} "
                    f"({format_size(nbytes)} for {what}): none is kept",
                )

    def fit(self) -> Fit | None:
        """Return how much of the longest sequence can be kept; None before a block was seen."""
        if not self._block_bytes:
            return None
        if self._block_bytes > min(self._memory, self._queue):
            name = self._memory_name if self._block_bytes > self._memory else "queue_bytes"
            return Fit(0, name)
        if self._cold is None:
            return Fit(self._memory // self._block_bytes * self._block, self._memory_name)
        blocks = max(0, self._cold - DIRECTORY_BYTES) // (self._block_bytes + FILE_BYTES)
        return Fit(blocks * self._block, "cold_bytes")

    def sequence(self, tokens: int) -> None:
        """Note a sequence that was handed over in full."""
        fit = self.fit()
        if fit is None or tokens // self._block * self._block <= fit.tokens:
            return
        size = self._memory if self._cold is None else self._cold
        self._tell(
            fit.setting,
            f"{fit.setting} ({format_size(size)}) holds about {fit.tokens} tokens of {self._label} "
            f"({format_size(self._block_bytes)} for {self._block}): of a sequence of {tokens} "
            "tokens the end is not kept",
        )

    def _tell(self, setting: str, text: str) -> None:
        if setting not in self._told:
            self._told.add(setting)
            _log.warning(text)
