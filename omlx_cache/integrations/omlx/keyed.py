"""Tokens that stand for images too: oMLX names those beside the tokens, as extra keys."""

import hashlib
from collections.abc import Sequence
from typing import Any

from omlx_cache.integrations.naming import stand_in

ExtraRanges = Sequence[tuple[int, tuple[Any, ...]]]


def keyed(
    tokens: Sequence[int],
    extra_keys: tuple[Any, ...] | None = None,
    start: int | None = None,
    ranges: ExtraRanges | None = None,
) -> list[int]:
    """Return tokens of which the one where extra keys begin to count is a negative id made from it
    and from them: what follows is of another prefix, and what comes before is shared."""
    named = list(tokens)
    begins = list(ranges) if ranges else [(start or 0, extra_keys)] if extra_keys else []
    for at, keys in begins:
        place = min(max(at, 0), len(named) - 1)
        if place >= 0:
            digest = hashlib.sha256(repr((named[place], keys)).encode()).digest()
            named[place] = stand_in(digest)
    return named
