"""How work grows: a figure at each of some lengths, and how steep they are."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from omlx_cache.tools.bench.rows import Row

COUNTED = 16
"""Over how large a factor, up to the greatest length, steepness is taken: what is short is mostly
what a call costs by itself."""


@dataclass(frozen=True, slots=True)
class GrowthRow:
    """A row at `length` tokens or pages."""

    length: int
    row: Row


def lengths(smallest: int, largest: int) -> list[int]:
    """Return lengths up to the largest, each four times the one before."""

    def fourfold() -> Iterator[int]:
        length = smallest
        while True:
            yield length
            length *= 4

    return list(takewhile(lambda length: length <= largest, fourfold()))


def steepness(rows: Sequence[GrowthRow]) -> float | None:
    """Return with which power of the length our time grows; None for a single length."""
    greatest = max(each.length for each in rows)
    counted = [each for each in rows if COUNTED * each.length >= greatest]
    if len(counted) < 2:
        return None
    xs = [math.log(each.length) for each in counted]
    ys = [math.log(each.row.ours) for each in counted]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    products = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True))
    return products / sum((a - x) ** 2 for a in xs)


def in_words(power: float | None) -> str:
    """Say what a power means to who doubles a length."""
    if power is None:
        return "one length"
    if power < 0.25:
        return "does not grow"
    if power < 0.8:
        return "less than linear"
    return "linear" if power <= 1.2 else "more than linear"
