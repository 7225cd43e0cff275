"""How long the buffers of KVCache and QuantizedKVCache become when they must grow.

A buffer that holds n tokens is copied whole each time it grows. Fixed steps copy O(n^2 / step)
tokens in all; a geometric policy copies O(n) and wastes at most `factor - 1` of its tokens.
"""

import math
import warnings
from dataclasses import dataclass
from typing import Any, Protocol

from mlx.utils import tree_map

from .buffers import Array, Independent, own_step, regrow


class Growth(Protocol):
    """A policy object: frozen, shared freely between caches and their copies."""

    def columns(self, needed: int) -> int:
        """Return the buffer length, in tokens, that replaces one too short for `needed`."""


def round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def positive(name: str, value: int) -> int:
    """Return `value`; raises ValueError naming the option unless it is an int of at least 1."""
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
    """Grow to `factor` times the needed tokens, in multiples of `step`. `limit` is a ceiling on the
    slack, not on the cache: one that needs more gets that, rounded up to `step`."""

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


class CapacityWarning(UserWarning):
    """A cache outgrew the `max_size` that it was allocated for, and reallocates from here on."""


class Capacity(Independent):
    """Mixin, what both classes share: decides how long a buffer becomes when it is too short.

    The options are class attributes too, because `from_state` builds caches without `__init__`.
    Mutable: `_warned`, and `_borrowed`: whether keys and values are views of another cache's longer
    buffers.
    """

    max_size: int | None = None
    growth: Growth | None = None
    _warned = False
    _borrowed = False

    offset: int
    keys: Any
    values: Any

    def _set_options(self, max_size: int | None, step: int | None, growth: Growth | None) -> None:
        if step is not None and growth is not None:
            raise ValueError("step and growth are two ways to say the same thing: give one")
        if max_size is not None:
            self.max_size = positive("max_size", max_size)
        if step is not None:
            self.step = positive("step", step)
        self.growth = growth

    def _options(self) -> dict[str, Any]:
        return {"max_size": self.max_size, "step": own_step(self), "growth": self.growth}

    def _plans_ahead(self) -> bool:
        """Whether upstream's own growth is replaced; `step` alone leaves it in place."""
        return self.max_size is not None or self.growth is not None

    def __copy__(self) -> Any:
        """Return an independent cache; a planned one shares only the tokens in use, as MLX copies a
        shared buffer whole at the first write. Its first append reallocates."""
        twin = super().__copy__()
        if self._plans_ahead() and self.keys is not None:
            twin.keys, twin.values = tree_map(
                lambda buffer: buffer[..., : self.offset, :], (twin.keys, twin.values)
            )
            twin._borrowed = True
        return twin

    def _append(self, buffers: Any, parts: Any, start: int) -> tuple[Array, ...]:
        """Return the buffers with the parts behind their first `start` columns, longer ones where
        there is no room."""
        end = start + parts[0].shape[2]
        if buffers is None or end > buffers[0].shape[2]:
            columns = self._columns(end)
            old = buffers or [None] * len(parts)
            buffers = [regrow(o, start, columns, like=p) for o, p in zip(old, parts, strict=True)]
        for buffer, part in zip(buffers, parts, strict=True):
            buffer[..., start:end, :] = part
        return tuple(buffers)

    def _columns(self, needed: int) -> int:
        """Return the new buffer length; warns the first time that `max_size` is exceeded."""
        self._borrowed = False
        if self.max_size is not None and needed <= self.max_size:
            return self.max_size
        if self.max_size is not None and not self._warned:
            self._warned = True
            warnings.warn(
                f"a cache allocated for max_size={self.max_size} tokens now holds {needed}: "
                "it grows, and reallocates from here on",
                CapacityWarning,
                stacklevel=4,
            )
        if self.growth is not None:
            return self.growth.columns(needed)
        step = own_step(self)
        return (Geometric() if step is None else FixedStep(step)).columns(needed)
