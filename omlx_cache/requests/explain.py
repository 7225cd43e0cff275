"""From what a look-up met, and what is known of earlier prompts, to the reason. Pure."""

from dataclasses import dataclass
from typing import NamedTuple

from omlx_cache import reasons
from omlx_cache.requests.explanation import Elsewhere, Excerpt, Explanation
from omlx_cache.requests.history import Nearest
from omlx_cache_storage.departures import Departure
from omlx_cache_storage.keys import Tokens

BEFORE, AFTER = 24, 16
"""Tokens of an excerpt before the place where two prompts part, and behind it."""

LEAST_SHARED = 8
"""Prompts that share fewer tokens have only the beginning of their template in common."""

_ABOUT_PROMPTS = (
    reasons.NEW_TEXT,
    reasons.DIVERGED,
    reasons.REWRITTEN,
    reasons.NOT_STORED,
    reasons.WINDOW_NOT_HELD,
    reasons.SNAPSHOT_MISSING,
)
"""The reasons that have to do with what an earlier prompt was."""


class Met(NamedTuple):
    """Where a look-up ended: `restored` of `tokens`, the first `matched` known, for a reason of
    `omlx_cache.reasons`. `lacking` is what was missed there beside blocks: `window`, `state` or
    nothing. `points` tells that the model can be restored at restore points only."""

    tokens: int
    restored: int
    matched: int
    block_size: int
    reason: str | None
    lacking: str = ""
    points: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """What there is to explain it by. `departure` is how the page left that was missed; `deeper`
    tells that pages behind it are there. `remembers` is False when no prompts are remembered."""

    nearest: Nearest | None = None
    departure: Departure | None = None
    deeper: bool = False
    forgetful: bool = False
    elsewhere: Elsewhere | None = None
    remembers: bool = True


def explain(met: Met, known: Known, tokens: Tokens) -> Explanation:
    """Return the reason why no more was restored; reads nothing."""
    reason, detail = _reason(met, known)
    near, gone, other = known.nearest, known.departure, known.elsewhere
    if reason not in _ABOUT_PROMPTS or (reason == reasons.NEW_TEXT and not _is_telling(near)):
        near = None
    said = reason in (reasons.MODEL_CHANGED, reasons.SETTINGS_CHANGED)
    left = reason == reasons.EVICTED
    here, there, before = _excerpts(near, tokens)
    return Explanation(
        reason=reason,
        tokens=met.tokens,
        restored=met.restored,
        position=None if near is None else near.shared,
        other=None if near is None else near.number,
        other_at=None if near is None else near.asked_at,
        other_tokens=0 if near is None else near.length,
        alike=near is not None and near.alike,
        opening=None if near is None else near.opening,
        how=gone.how if left and gone is not None else "",
        gone_at=gone.at if left and gone is not None else None,
        changed=other.changed if said and other is not None else {},
        stored_model=other.label if said and other is not None else "",
        detail=detail,
        restore_points=met.points,
        before=before,
        here=here,
        there=there,
    )


def _reason(met: Met, known: Known) -> tuple[str | None, str]:
    """Return the reason, and more about it."""
    if met.reason is None:
        return None, ""
    word, _, detail = met.reason.partition(":")
    if word == reasons.NO_RESTORE_POINT:
        return _without_point(met, known)
    if word != reasons.ABSENT:
        return word, detail
    near = known.nearest
    if known.departure is not None or known.deeper:
        return reasons.EVICTED, ""
    if near is not None and _whole(met, near.shared) > met.restored:
        return _lost(met, near, known)
    if near is None or (near.shared < met.block_size and not _related(near)):
        if known.elsewhere is not None and not met.restored:
            changed = known.elsewhere.is_model
            return reasons.MODEL_CHANGED if changed else reasons.SETTINGS_CHANGED, ""
        return (reasons.NEW_TEXT if known.remembers else reasons.ABSENT), ""
    if near.opening is not None:
        return reasons.REWRITTEN, ""
    # What lies behind the place was never asked for, unless it is the other prompt's, moved.
    return (reasons.DIVERGED if near.alike and not near.continued else reasons.NEW_TEXT), ""


def _without_point(met: Met, known: Known) -> tuple[str, str]:
    near = known.nearest
    missing = reasons.WINDOW_NOT_HELD if met.lacking == "window" else reasons.SNAPSHOT_MISSING
    if known.departure is not None:
        return reasons.EVICTED, missing
    if near is not None and not near.continued and near.opening is not None:
        return reasons.REWRITTEN, missing
    return missing, ""


def _lost(met: Met, near: Nearest, known: Known) -> tuple[str, str]:
    """Return why blocks are not there that an earlier prompt had."""
    if near.stored >= met.restored + met.block_size and known.forgetful:
        return reasons.EVICTED, ""
    return reasons.NOT_STORED, near.skipped


def _is_telling(near: Nearest | None) -> bool:
    """True for a prompt that shares more than the first tokens of a template."""
    return near is not None and near.shared >= LEAST_SHARED


def _related(near: Nearest) -> bool:
    """True for prompts that have more in common than how every prompt begins."""
    return near.alike or near.opening is not None or near.continued


def _whole(met: Met, shared: int) -> int:
    """Return how much of what is shared lies in whole blocks, its last token excepted."""
    return min(shared, met.tokens - 1) // met.block_size * met.block_size


def _excerpts(near: Nearest | None, tokens: Tokens) -> tuple[Excerpt, Excerpt, int]:
    if near is None:
        return (), (), 0
    start = max(0, near.shared - BEFORE)
    span = slice(start, near.shared + AFTER)
    here, there = tokens[span].tolist(), near.tokens[span].tolist()
    return tuple(here), tuple(there), near.shared - start
