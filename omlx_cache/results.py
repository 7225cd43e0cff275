"""What look-ups and commits return: frozen values, no live objects."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from omlx_cache.requests.explanation import Explanation


class PageLocation(NamedTuple):
    """One page of a restorable prefix: the tokens it covers and the tier that has it."""

    key: str
    group: str
    start: int
    stop: int
    nbytes: int
    tier: str


@dataclass(frozen=True, slots=True)
class Lookup:
    """Where a prefix lies. `cached_tokens` can be restored; `matched_tokens` are known.
    `explanation` says why it is not more, and `str()` of it in words."""

    cached_tokens: int
    matched_tokens: int
    miss_reason: str | None
    pages: tuple[PageLocation, ...]
    explanation: Explanation | None = None


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What a commit handed to the tiers: `pages` new ones of `nbytes` together.

    `tokens` is the position up to which the sequence was considered; `skipped` counts pages that
    were not stored, by reason. `promoted_pages` is 0: a commit takes no page that is on the disk
    into memory, a restore does.
    """

    tokens: int
    pages: int
    nbytes: int
    promoted_pages: int
    skipped: Mapping[str, int]

    @classmethod
    def none(cls, reason: str) -> "CommitResult":
        """Return the result of a commit that could not begin, for a reason's word."""
        return cls(0, 0, 0, 0, {reason: 1})
