"""Processes' replies about their requests: a frozen dataclass for each answer."""

from collections.abc import Sequence
from dataclasses import dataclass

from omlx_cache.requests.explanation import Explanation, RequestRecord


@dataclass(frozen=True, slots=True)
class RecordPage:
    """A part of a log: `upto` is the number up to which it has all that is remembered."""

    upto: int
    records: Sequence[RequestRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRequest(RequestRecord):
    """A request with why no more of it was restored: `why` shows nothing of its text. `words` and
    `explanation` may; they are for this user only, and null before it was looked up."""

    pid: int
    why: str = ""
    words: str = ""
    explanation: Explanation | None = None


@dataclass(frozen=True, slots=True)
class Remembered:
    """How much of its requests a process remembers, to explain later ones, and `since` when."""

    limit_bytes: int
    bytes: int
    since: float


@dataclass(frozen=True, slots=True)
class WhyReply:
    """The latest requests, oldest first, each with why no more of it was restored."""

    requests: Sequence[ExplainedRequest]
    history: Remembered
