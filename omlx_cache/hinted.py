"""Hints as callers give them: what is none is passed over and counted, and nothing raises."""

from omlx_cache_storage.hints import Ended, Priority, is_ended, is_priority
from omlx_cache_storage.stats import Counters

MOST_PIN_SECONDS = 10 * 365 * 86_400


def ended_or_none(value: object, counters: Counters) -> Ended | None:
    """Return how an answer ended; None, and counted, for a word that says nothing here."""
    if value is None or is_ended(value):
        return value
    counters.add(ignored_hints=1)
    return None


def priority_or_normal(value: object, counters: Counters) -> Priority:
    """Return a priority; normal, and counted, for what is none."""
    if is_priority(value):
        return value
    counters.add(ignored_hints=1)
    return "normal"


def seconds_or_none(value: object, counters: Counters) -> float | None:
    """Return how long a pin lasts, ten years at most; None, and counted, for what is no time."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and isinstance(value, int | float) and value > 0:
        return float(min(value, MOST_PIN_SECONDS))
    counters.add(ignored_hints=1)
    return None
