"""What KVCache and QuantizedKVCache share: how long their buffers become."""

import warnings
from typing import Any

from mlx.utils import tree_map

from .copies import Independent
from .errors import CapacityWarning
from .growth import FixedStep, Geometric, Growth, positive


class Capacity(Independent):
    """Mixin: decides how long a buffer becomes when it is too short.

    The options are class attributes too, because `from_state` builds caches without
    calling `__init__`. Mutable: `_warned`, and `_borrowed`: whether keys and values are
    views of another cache's longer buffers.
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
        """Return the options as keyword arguments for a cache of the same kind."""
        return {"max_size": self.max_size, "step": self._own_step(), "growth": self.growth}

    def _own_step(self) -> int | None:
        step: int | None = self.__dict__.get("step")
        return step

    def _plans_ahead(self) -> bool:
        """Whether upstream's own growth is replaced; `step` alone leaves it in place."""
        return self.max_size is not None or self.growth is not None

    def __copy__(self) -> Any:
        """Return an independent cache; a planned one shares only the tokens in use.

        MLX copies a shared buffer whole at the first write. The copy has no slack, so its
        first append reallocates instead, and moves no slack.
        """
        twin = super().__copy__()
        if self._plans_ahead() and self.keys is not None:
            twin.keys, twin.values = tree_map(
                lambda buffer: buffer[..., : self.offset, :], (twin.keys, twin.values)
            )
            twin._borrowed = True
        return twin

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
        return self._policy().columns(needed)

    def _policy(self) -> Growth:
        if self.growth is not None:
            return self.growth
        step = self._own_step()
        return Geometric() if step is None else FixedStep(step)
