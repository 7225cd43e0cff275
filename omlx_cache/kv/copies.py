"""Copies of a cache that do not see each other's later writes."""

import copy
from typing import Any

from .buffers import shared


class Independent:
    """Mixin: `copy.copy` and `copy.deepcopy` both give an independent cache, at no bytes.

    The buffers stay shared until one of the two is written, and MLX copies what is
    written then. Upstream's shallow copy shares the Python handles instead, so that both
    caches see the bytes of whichever wrote last.
    """

    def __copy__(self) -> Any:
        twin = type(self).__new__(type(self))
        twin.__dict__.update({name: shared(value) for name, value in self.__dict__.items()})
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        twin = copy.copy(self)
        memo[id(self)] = twin
        return twin
