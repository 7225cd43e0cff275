"""Tokens that stand for images too: oMLX names those beside the tokens, as extra keys."""

import hashlib
from collections.abc import Sequence
from typing import Any

ExtraRanges = Sequence[tuple[int, tuple[Any, ...]]]


def keyed(
    tokens: Sequence[int],
    extra_keys: tuple[Any, ...] | None = None,
    start: int | None = None,
    ranges: ExtraRanges | None = None,
) -> list[int]:
    """Return tokens of which the one where extra keys begin to count is a negative id made from it
    and from them: what follows is of another prefix, and what comes before is shared.

    Servers use negative ids for images, no tokenizer does.
    """
    named = list(tokens)
    begins = list(ranges) if ranges else [(start or 0, extra_keys)] if extra_keys else []
    for at, keys in begins:
        place = min(max(at, 0), len(named) - 1)
        if place >= 0:
            digest = hashlib.sha256(repr((named[place], keys)).encode()).digest()
            named[place] = -1 - (int.from_bytes(digest[:8], "little") >> 1)
    return named
