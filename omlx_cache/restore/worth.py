"""Up to which position reading pays: pure arithmetic over estimates, without a clock or a tier."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np

from omlx_cache import reasons
from omlx_cache_storage.costs import TokenCost

CLEARLY = 1.25
"""A second of computing weighs so much: it takes the device from others, and estimates err."""
LEAST_SECONDS = 0.05
"""A difference that nobody would notice is no reason to compute."""


class Passed(NamedTuple):
    """What could be restored and is computed instead: `tokens` up to `position`, and what is
    believed that each way takes."""

    position: int
    tokens: int
    read_seconds: float
    compute_seconds: float

    @property
    def reason(self) -> str:
        """The miss reason, with both estimates behind the word."""
        return (
            f"{reasons.SLOWER_THAN_COMPUTING}:{self.tokens:,} tokens, about "
            f"{_short(self.read_seconds)} to read and {_short(self.compute_seconds)} to compute"
        )


def _short(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


class Choice(NamedTuple):
    """The position to restore to, and what is passed by for it."""

    position: int
    passed: Passed | None = None


class Costs(NamedTuple):
    """Seconds for a byte that the disk has, for a token that is computed, and for a byte that other
    machines have. What is in memory costs nothing."""

    per_byte: float
    token: TokenCost
    per_remote_byte: float = 0.0


@dataclass(frozen=True, slots=True)
class Candidates:
    """The positions that can be restored: the longest, and lazily the shorter ones, of which the
    deepest comes first.

    `cold_bytes` are what a restore to a position reads from the disk, `remote_bytes` from other
    machines. A position in a block reads what `least_bytes` and `least_remote` have for the block
    at least; they have nothing where that is not known.
    """

    longest: int
    shorter: Iterable[int]
    cold_bytes: Callable[[int], int]
    block_size: int
    least_bytes: Callable[[], Sequence[int]] = tuple
    remote_bytes: Callable[[int], int] = lambda position: 0
    least_remote: Callable[[], Sequence[int]] = tuple


class Judge(Protocol):
    """Chooses among the positions that can be restored, and says whether it pays to ask other
    machines for the tokens from one to another."""

    def choose(self, candidates: Candidates) -> Choice: ...
    def worth_asking(self, start: int, stop: int) -> bool: ...


def choose(costs: Costs, candidates: Candidates) -> Choice:
    """Return the position from which all of the request is there soonest: what it takes to read up
    to there and to compute, dearer by `CLEARLY`, from there on. Of equals the deepest.

    The tokens beyond the longest are computed in any case. All is read unless that takes
    `LEAST_SECONDS` more. Positions are weighed from the longest down to where their blocks alone
    rule the rest out.
    """
    longest = candidates.longest

    def reading(position: int) -> float:
        far = costs.per_remote_byte * candidates.remote_bytes(position)
        return costs.per_byte * candidates.cold_bytes(position) + far

    def seconds(position: int) -> float:
        return reading(position) + CLEARLY * costs.token.seconds(position, longest)

    best, least = longest, seconds(longest)
    whole = least
    if whole < LEAST_SECONDS:
        return Choice(longest)
    bounds = _bounds(costs, candidates)
    for position in chain(candidates.shorter, (0,)):
        if bounds and bounds[position // candidates.block_size] >= least:
            break
        if position < best and (found := seconds(position)) < least:
            best, least = position, found
    if whole - least < LEAST_SECONDS:
        return Choice(longest)
    spared = reading(longest) - (reading(best) if best else 0.0)
    computing = costs.token.seconds(best, longest)
    return Choice(best, Passed(longest, longest - best, spared, computing))


def _bounds(costs: Costs, candidates: Candidates) -> Sequence[float]:
    """Return by blocks what all positions in a block and before it take at least, whether they can
    be restored or not; nothing where that is not known."""
    read = costs.per_byte * np.asarray(candidates.least_bytes(), dtype=np.float64)
    if costs.per_remote_byte and len(read):
        read += costs.per_remote_byte * np.asarray(candidates.least_remote(), dtype=np.float64)
    size, longest = candidates.block_size, candidates.longest
    # Of a block's positions the last one leaves least to compute.
    last = np.minimum(np.arange(1, len(read) + 1) * float(size), longest)
    computing = costs.token.first * (longest - last)
    computing += costs.token.growth * (float(longest) ** 2 - last**2) / 2
    least = read + CLEARLY * computing
    bounds: list[float] = np.minimum.accumulate(least).tolist()
    return bounds
