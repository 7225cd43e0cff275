"""The arguments of a program's calls: one of a wrong type is ignored, and ends no request."""

import logging
from collections.abc import Callable
from numbers import Integral, Number
from reprlib import repr as short
from typing import TypeGuard, TypeVar

from omlx_cache_storage.measures import Counters

_log = logging.getLogger(__name__)

Known = TypeVar("Known")
SECONDS = "a number of seconds"
MOST_SECONDS = 2**32
"""More than a century; threads cannot wait for ever so long."""


class Arguments:
    """Returns a valid argument, or its default; never raises. An ignored argument is counted
    (`ignored_hints`), and logged the first time for each name. Any thread may call: each operation
    on `_told` is atomic."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._told: set[str] = set()

    def known(
        self,
        name: str,
        value: object,
        is_one: Callable[[object], TypeGuard[Known]],
        default: Known,
        wanted: str,
    ) -> Known:
        """Return a value that `is_one`, else the default; `wanted` says what to give. NumPy's
        numbers become Python's: threads and MLX take no others."""
        if isinstance(value, Number) and hasattr(value, "item"):
            value = value.item()
        if value is default or is_one(value):
            return value
        self.ignore(name, value, wanted)
        return default

    def ignore(self, name: str, value: object, wanted: str) -> None:
        self._counters.add(ignored_hints=1)
        self.say(name, f"{name}={short(value)} is ignored: give {wanted}")

    def say(self, name: str, message: str) -> None:
        if name not in self._told:
            self._told.add(name)
            _log.warning("%s", message)


def is_seconds(value: object) -> TypeGuard[float]:
    """True for a time that a thread can wait for: no bool, not NaN, not infinite."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= MOST_SECONDS
    )


def is_timeout(value: object) -> TypeGuard[float | None]:
    return value is None or is_seconds(value)


def is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_count(value: object) -> TypeGuard[int]:
    return is_whole(value) and value >= 0
