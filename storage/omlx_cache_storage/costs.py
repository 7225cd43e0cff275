"""What computing and reading cost, learned from what was computed and read."""

import math
from collections import deque
from typing import NamedTuple

MEASURED_TOKENS = 1024
"""Fewer tokens than these say nothing of what a token costs."""
RECENT_TOKENS = 32_768
"""What was computed so many tokens ago counts e times less than what was computed now."""
REACH = 2
"""A cost holds for positions up to so many times the deepest that was measured lately."""

LEAST_READS = 3
MOST_READS = 4
REMEMBERED_READS = 16
"""A cost needs three reads, the latest four count; small ones may come between large ones."""
LASTS_SECONDS = 600.0
"""A read says nothing any more after so long: the disk may have been busy."""
LARGER = 4
"""A read says nothing of what is more than so many times as large."""


class TokenCost(NamedTuple):
    """What a token takes to compute: `first` seconds at the head of a prompt, and `growth` more for
    each token before it, as attention has it. Measured for positions up to `deepest`."""

    first: float
    growth: float
    deepest: float

    def seconds(self, start: int, stop: int) -> float:
        """Return what the tokens [start, stop) take."""
        return self.first * (stop - start) + self.growth * (stop * stop - start * start) / 2

    def knows(self, position: int) -> bool:
        """True when what was measured says something of a position."""
        return position <= REACH * self.deepest


class ComputeCost:
    """Learns what a token costs by its position: a line through the latest chunks, by least
    squares. Neither its start nor its slope is ever negative. Mutable; its owner guards it."""

    def __init__(self) -> None:
        self._measured = 0
        self._deepest = 0.0
        self._tokens = self._places = self._squares = 0.0
        self._seconds = self._moment = 0.0

    def add(self, start: int, tokens: int, seconds: float) -> None:
        """Note that the tokens from `start` on took so many seconds; 0 for those that shared a
        step with others, which has been counted."""
        kept = math.exp(-tokens / RECENT_TOKENS)
        place = start + tokens / 2
        self._measured += tokens
        self._deepest = max(float(start + tokens), self._deepest * kept)
        self._tokens = self._tokens * kept + tokens
        self._places = self._places * kept + tokens * place
        self._squares = self._squares * kept + tokens * place * place
        self._seconds = self._seconds * kept + seconds
        self._moment = self._moment * kept + seconds * place

    def cost(self) -> TokenCost | None:
        """Return what a token costs; None before enough was measured."""
        if self._measured < MEASURED_TOKENS or self._seconds <= 0:
            return None
        mean, middle = self._seconds / self._tokens, self._places / self._tokens
        spread = self._squares / self._tokens - middle * middle
        growth = 0.0
        if spread > (middle / 10) ** 2:
            growth = max(0.0, (self._moment / self._tokens - mean * middle) / spread)
        # A line below zero at the head would say that a prompt's beginning costs nothing.
        growth = min(growth, mean / middle)
        return TokenCost(mean - growth * middle, growth, self._deepest)


class _Read(NamedTuple):
    nbytes: int
    seconds: float
    at: float


class ReadCost:
    """Learns what a byte costs to restore from a tier, whatever lies between: headers, checks,
    decoding, copies. Mutable; its owner guards it.

    The quickest of the latest reads counts: one slow moment proves nothing, and one quick read is
    believed at once.
    """

    def __init__(self) -> None:
        self._reads: deque[_Read] = deque(maxlen=REMEMBERED_READS)

    def add(self, nbytes: int, seconds: float, now: float) -> None:
        """Note that so many bytes were restored in so many seconds, which ended now."""
        if nbytes > 0 and seconds > 0:
            self._reads.append(_Read(nbytes, seconds, now))

    def per_byte(self, nbytes: int, now: float) -> float | None:
        """Return what a byte costs in a restore of `nbytes`; None where the latest reads say
        nothing of one so large."""
        telling = [
            read.seconds / read.nbytes
            for read in self._reads
            if read.nbytes * LARGER >= nbytes and now - read.at < LASTS_SECONDS
        ]
        return min(telling[-MOST_READS:]) if len(telling) >= LEAST_READS else None
