"""Hints: what a scheduler knows of who asks for a sequence again, and when. They say what is kept,
and never what is restored."""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeGuard, get_args

from omlx_cache_storage.pins import PinRecord

Ended = Literal["tool_call", "turn", "length", "cancelled"]
"""How an answer ended. After a `tool_call` its agent is back within seconds. After a `turn` nobody
knows when the person returns, so that any new page may push the sequence's out. Of the others
nothing is known, as without a hint."""

Priority = Literal["low", "normal", "high"]
"""Whose pages leave first: those of a use count as used so much earlier or later than they were."""

PRIORITY_SECONDS: Final = 600
_SHIFTS_NS: Final[dict[Priority, int]] = {
    "low": -PRIORITY_SECONDS * 1_000_000_000,
    "normal": 0,
    "high": PRIORITY_SECONDS * 1_000_000_000,
}


def is_ended(value: object) -> TypeGuard[Ended]:
    """True for a word that says how an answer ended."""
    return isinstance(value, str) and value in get_args(Ended)


def is_priority(value: object) -> TypeGuard[Priority]:
    """True for a word that is a priority."""
    return isinstance(value, str) and value in _SHIFTS_NS


def shift_ns(priority: Priority) -> int:
    """Return by how much a use of this priority counts as later than it is."""
    return _SHIFTS_NS[priority]


def use_stamp(
    now_ns: int, priority: Priority = "normal", ended: Ended | None = None, patience_ns: int = 0
) -> int:
    """Return the stamp of a use: that of pages which leave when those of this use shall.

    A finished turn counts as `patience_ns` earlier, the age from which on a new page pushes others
    out; not for a high priority.
    """
    early = patience_ns if ended == "turn" and priority != "high" else 0
    return now_ns + shift_ns(priority) - early


class Pinned(NamedTuple):
    """How many of the pages that were asked for a tier has, and how many of them are pinned."""

    found_pages: int
    pages: int
    nbytes: int


class PinnedPages(NamedTuple):
    """A pin, None where there was no room for another one, and what each tier had for it when it
    began, memory first."""

    pin: PinRecord | None
    tiers: Sequence[Pinned]
