"""Up to which position reading pays: pure arithmetic over estimates, without a clock or a tier."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

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
            f"{self.read_seconds:.2g} s to read and {self.compute_seconds:.2g} s to compute"
        )


class Choice(NamedTuple):
    """The position to restore to, and what is passed by for it."""

    position: int
    passed: Passed | None = None


class Costs(NamedTuple):
    """Seconds for a byte that is not in memory, and for a token that is computed. What is in memory
    costs nothing."""

    per_byte: float
    token: TokenCost


class Judge(Protocol):
    """Chooses among the positions that can be restored: the longest, and lazily the shorter ones,
    of which the deepest comes first. `cold_bytes` are what a restore to a position reads."""

    def choose(
        self, longest: int, shorter: Iterable[int], cold_bytes: Callable[[int], int]
    ) -> Choice: ...


def choose(
    costs: Costs, longest: int, shorter: Iterable[int], cold_bytes: Callable[[int], int]
) -> Choice:
    """Return the position from which all of the request is there soonest: what it takes to read up
    to there and to compute, dearer by `CLEARLY`, from there on. Of equals the deepest.

    The tokens beyond the longest are computed in any case. All is read unless that takes
    `LEAST_SECONDS` more.
    """

    def seconds(position: int) -> float:
        computing = costs.token.seconds(position, longest)
        return costs.per_byte * cold_bytes(position) + CLEARLY * computing

    whole = seconds(longest)
    best, least = longest, whole
    for position in (*shorter, 0):
        if position < best and (found := seconds(position)) < least:
            best, least = position, found
    if whole - least < LEAST_SECONDS:
        return Choice(longest)
    reading = costs.per_byte * (cold_bytes(longest) - (cold_bytes(best) if best else 0))
    computing = costs.token.seconds(best, longest)
    return Choice(best, Passed(longest, longest - best, reading, computing))
