"""From what a look-up met, and what is known of earlier prompts, to the reason; on the path of a
request, so in bounded time."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from omlx_cache import reasons
from omlx_cache.requests.explanation import Explanation
from omlx_cache.requests.history import Nearest, PromptHistory
from omlx_cache_storage.events import Departure, Departures, How
from omlx_cache_storage.keys import KeyChain, Tokens
from omlx_cache_storage.page import PAGED, PageId, PageInfo

_log = logging.getLogger(__name__)

BEFORE, AFTER = 24, 16
"""Tokens of an excerpt before the place where two prompts part, and behind it."""
LEAST_SHARED = 8
"""Prompts that share fewer tokens have only the beginning of their template in common."""
DEEPER_BLOCKS = 8
"""How many blocks behind a missing one are looked for."""
LEADING_BLOCKS = 1024
"""How many blocks before the known end are looked through for a window or state that left."""

_GONE: dict[How, str] = {
    "memory": "from memory",
    "disk": "from the disk",
    "removed": "deleted",
    "damaged": "damaged",
}


class KnownPages(Protocol):
    """What is asked of the tiers; reads nothing."""

    @property
    def departures(self) -> Departures: ...
    def find(self, page: PageId) -> PageInfo | None: ...


class Walked(NamedTuple):
    """A look-up along a chain, in a scope of these layer groups. `lacking` is what was missed at
    its end beside blocks: `window`, `state` or nothing."""

    chain: KeyChain
    groups: Sequence[str]
    matched: int
    lacking: str


class Explainer:
    """Explains look-ups by the history and by what left the tiers. Any thread may call; nothing
    raises, nothing is read from a disk. Holds nothing mutable itself."""

    def __init__(self, history: PromptHistory, tiers: KnownPages) -> None:
        self.history = history
        self._tiers = tiers

    def explain(
        self,
        walked: Walked | None,
        tokens: int,
        restored: int,
        reason: str | None,
        number: int | None = None,
    ) -> Explanation:
        """Return why no more of a prompt of so many tokens was restored; with the number of its
        request the prompt is remembered."""
        if walked is not None:
            try:
                return self._explain(walked, tokens, restored, reason, number)
            except Exception:
                _log.exception("a look-up is not explained")
        return Explanation(reason and reasons.word(reason), tokens, restored)

    def _explain(
        self, walked: Walked, tokens: int, restored: int, reason: str | None, number: int | None
    ) -> Explanation:
        prompt, namespace = walked.chain.tokens[:tokens], walked.chain.namespace
        if number is None:
            near = self.history.nearest(namespace, prompt)
        else:
            near = self.history.ask(number, namespace, prompt)
        if reason is None:
            return Explanation(None, tokens, restored)
        word, _, detail = reason.partition(":")
        told = Explanation(word, tokens, restored, detail=detail)
        if word not in (reasons.ABSENT, reasons.NO_RESTORE_POINT):
            return told
        departure = self._departure(walked, restored, near, word)
        if departure is not None:
            how = _GONE[departure.how]
            return replace(told, reason=reasons.EVICTED, detail=how, gone_at=departure.at)
        if word == reasons.ABSENT and self._has_deeper(walked, restored):
            return replace(told, reason=reasons.EVICTED, detail="before this start")
        if word == reasons.NO_RESTORE_POINT:
            is_window = walked.lacking == "window"
            word = reasons.WINDOW_NOT_HELD if is_window else reasons.SNAPSHOT_MISSING
        elif self.history.enabled:
            word = reasons.NEW_TEXT
        told = replace(told, reason=word)
        return told if near is None else self._compared(told, near, walked, prompt)

    def _compared(
        self, told: Explanation, near: Nearest, walked: Walked, prompt: Tokens
    ) -> Explanation:
        """Return the reason that the nearest prompt gives, with the place where they part."""
        word, detail, known = told.reason, "", near.prompt
        size, restored = walked.chain.block_size, told.restored
        is_new = word == reasons.NEW_TEXT
        if is_new and min(near.shared, told.tokens - 1) // size * size > restored:
            if self._tiers.departures.forgetful and known.stored >= restored + size:
                return replace(told, reason=reasons.EVICTED, detail="a while ago")
            word, detail = reasons.NOT_STORED, known.skipped
        elif near.is_rewritten(prompt):
            word = reasons.REWRITTEN
        elif is_new and not near.is_continued and near.is_alike(prompt):
            word = reasons.DIVERGED
        elif is_new and near.shared < LEAST_SHARED:
            return told
        start = max(0, near.shared - BEFORE)
        span = slice(start, near.shared + AFTER)
        return replace(
            told,
            reason=word,
            detail=detail,
            position=near.shared,
            other=known.number,
            other_at=known.asked_at,
            other_tokens=len(known.tokens),
            before=near.shared - start,
            here=tuple(prompt[span].tolist()),
            there=tuple(known.tokens[span].tolist()),
        )

    def _departure(
        self, walked: Walked, restored: int, near: Nearest | None, word: str
    ) -> Departure | None:
        """Return how the deepest page left of those that might have helped."""
        chain = walked.chain
        ends, groups = [_missed(walked, restored)], walked.groups[:1]
        if word == reasons.NO_RESTORE_POINT:
            ends = _points(walked, restored, near)
            groups = [group for group in walked.groups if group != PAGED]
        keys = (chain.key(end) for end in ends if 0 < end <= len(chain))
        pages = (PageId(key, group) for key in keys for group in groups)
        found = map(self._tiers.departures.find, pages)
        return next((departure for departure in found if departure is not None), None)

    def _has_deeper(self, walked: Walked, restored: int) -> bool:
        """True when pages are there behind the one that was missed."""
        chain, size = walked.chain, walked.chain.block_size
        first = _missed(walked, restored) + size
        ends = range(first, min(len(chain) + 1, first + DEEPER_BLOCKS * size), size)
        pages = (PageId(chain.key(end), group) for end in ends for group in walked.groups[:1])
        return any(self._tiers.find(page) is not None for page in pages)


def _missed(walked: Walked, restored: int) -> int:
    """Return the end of the first block that was not restored."""
    return (restored // walked.chain.block_size + 1) * walked.chain.block_size


def _points(walked: Walked, restored: int, near: Nearest | None) -> list[int]:
    """Return where a window or a state may have been, the deepest first."""
    size = walked.chain.block_size
    last = walked.matched // size * size
    first = max(restored // size * size, last - LEADING_BLOCKS * size)
    ends = {walked.matched, *range(last, first, -size)}
    if near is not None:
        length = len(near.prompt.tokens)
        ends |= {end for end in (length, length - 1) if restored < end <= near.shared}
    return sorted(ends, reverse=True)
