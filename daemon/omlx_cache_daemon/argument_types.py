"""Types of command-line arguments; argparse reports a value that is none."""

import argparse
import math
import re
from collections.abc import Callable, Iterable

from omlx_cache.settings.sizes import SIZE_FORMS, parse_size


def positive_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number


_PERIOD = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([smhdw])", re.ASCII)
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def period_seconds(text: str) -> float:
    """Return a period such as 30d, 12h or 2w in seconds."""
    match = _PERIOD.fullmatch(text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a period such as 30d, 12h or 2w")
    return float(match[1]) * _UNIT_SECONDS[match[2]]


def positive_count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}; give {SIZE_FORMS}") from None


def complete_by(
    words: Callable[[str, argparse.Namespace], Iterable[str]], action: argparse.Action
) -> None:
    """Have a shell complete a value by `words`, which takes the typed prefix."""

    def ask(prefix: str, parsed_args: argparse.Namespace, **more: object) -> list[str]:
        return list(words(prefix, parsed_args))

    action.completer = ask  # type: ignore[attr-defined]
