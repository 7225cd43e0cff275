"""How many columns a cache buffer gets when it must grow. Pure arithmetic: no MLX, no state.

A buffer that holds n tokens is copied whole each time it grows. Fixed steps copy
O(n^2 / step) tokens in all; a geometric policy copies O(n) and wastes at most
`factor - 1` of what it holds.
"""

import math
from dataclasses import dataclass
from typing import Protocol


class Growth(Protocol):
    """A policy object: frozen, shared freely between caches and their copies."""

    def columns(self, needed: int) -> int:
        """Return the buffer length, in tokens, that replaces one too short for `needed`."""
        ...


def round_up(count: int, multiple: int) -> int:
    """Return the least multiple of `multiple` that is not below `count`."""
    return -(-count // multiple) * multiple


def positive(name: str, value: int) -> int:
    """Return `value`; raise ValueError naming the option unless it is an int of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class FixedStep:
    """Grow to the next multiple of `step` tokens."""

    step: int = 256

    def __post_init__(self) -> None:
        positive("step", self.step)

    def columns(self, needed: int) -> int:
        return round_up(needed, self.step)


@dataclass(frozen=True, slots=True)
class Geometric:
    """Grow to `factor` times what is needed, in multiples of `step`, never past `limit`.

    `limit` is a ceiling on the slack, not on the cache: a cache that needs more than
    `limit` tokens gets what it needs, rounded up to `step`.
    """

    factor: float = 1.25
    step: int = 256
    limit: int | None = None

    def __post_init__(self) -> None:
        positive("step", self.step)
        if not self.factor > 1.0:
            raise ValueError(f"factor must be above 1, got {self.factor!r}")
        if self.limit is not None:
            positive("limit", self.limit)

    def columns(self, needed: int) -> int:
        target = round_up(math.ceil(needed * self.factor), self.step)
        if self.limit is None or target <= self.limit:
            return target
        return self.limit if needed <= self.limit else round_up(needed, self.step)
