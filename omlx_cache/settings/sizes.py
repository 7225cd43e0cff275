"""Byte counts as people write them (`4GiB`, `512MB`, `1.5 GiB`, `1048576`), durations, counts."""

import re

from omlx_cache_storage.documents import format_size as format_size

SIZE_FORMS = "a size such as 4GiB, 512MB or 1.5 GiB, or a whole number of bytes"
SMALLEST_COLD_BYTES = 96 * 1024
"""Less than the directories and the file of the smallest page take."""
SMALLEST_HOT_BYTES = 16 * 1024
"""Less is no memory for a page, and a forgotten unit."""
LONGEST_WAIT = 86_400
"""Seconds that a commit may wait for the writer at most: a day, so for as long as it progresses."""
_LARGEST = 2**63 - 1

_UNITS = {
    "": 1,
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("KMGTP", 1)},
    **{f"{letter}IB": 1024**power for power, letter in enumerate("KMGTP", 1)},
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)


def parse_size(value: object) -> int:
    """Return a byte count; raises ValueError for anything else, negatives and a bare `G` included,
    which means both 10^9 and 2^30."""
    if isinstance(value, str):
        count = _parse_text(value.strip())
    elif isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1:
        count = int(value)
    else:
        raise ValueError("not a size")
    if not 0 <= count <= _LARGEST:
        raise ValueError(f"outside 0..{_LARGEST}")
    return count


def parse_budget(value: object, smallest: int = SMALLEST_COLD_BYTES) -> int:
    """Return a budget's byte count; also raises ValueError for one that is not 0 and has no room
    for a page."""
    count = parse_size(value)
    if 0 < count < smallest:
        # Everything would go at once, and most who write `40` mean another unit.
        raise ValueError(
            f"{format_size(count)} has no room for a page: give a unit, as in 40GiB, or 0 to keep "
            "nothing there"
        )
    return count


def _parse_text(text: str) -> int:
    from decimal import Decimal  # only here: it takes long to import

    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError("not a size")
    number, unit = match.groups()
    if unit.upper() not in _UNITS:
        raise ValueError(f"unknown unit {unit!r}")
    if not unit and "." in number:
        raise ValueError("a fraction needs a unit")
    return int(Decimal(number) * _UNITS[unit.upper()])


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def duration(seconds: float) -> str:
    """Return a duration for people: `0.25 s`, `155 s`, `11 min`, `5.1 h`, `12 d`."""
    if seconds < 0.0001:
        # Three digits of these would have an exponent.
        return f"{seconds:.5f}".rstrip("0").rstrip(".") + " s"
    if seconds < 10:
        return f"{seconds:.3g} s"
    if seconds < 600:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.0f} d"
