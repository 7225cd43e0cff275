"""Gathers what a look-up is explained by; on the path of a request, so in bounded time."""

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from omlx_cache import reasons
from omlx_cache.requests.elsewhere import Finding, OtherNamespaces
from omlx_cache.requests.explain import Known, Met, explain
from omlx_cache.requests.explanation import Explanation
from omlx_cache.requests.history import Nearest, PromptHistory
from omlx_cache_storage.departures import Departure, Departures
from omlx_cache_storage.keys import KeyChain
from omlx_cache_storage.page import PAGED, PageId

_log = logging.getLogger(__name__)

DEEPER_BLOCKS = 8
"""How many blocks behind a missing one are looked for."""
LEADING_BLOCKS = 1024
"""How many blocks before the known end are looked through for a window or state that left."""


class Remembering(Finding, Protocol):
    """What is asked of the tiers; reads nothing."""

    @property
    def departures(self) -> Departures: ...


class Walked(NamedTuple):
    """A look-up along a chain, in a scope of these layer groups; `lacking` as in `Met`."""

    chain: KeyChain
    groups: Sequence[str]
    matched: int
    lacking: str


class Explainer:
    """Explains look-ups by the history, by what left the tiers, and by other namespaces. Any thread
    may call; nothing raises, nothing is read from a disk. Holds nothing mutable itself."""

    def __init__(self, history: PromptHistory, tiers: Remembering, others: OtherNamespaces) -> None:
        self.history = history
        self._tiers = tiers
        self._others = others

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
        if walked is None:
            return Explanation(reason and reasons.word(reason), tokens, restored)
        try:
            near = self._nearest(walked.chain, tokens, number)
            if reason is not None:
                return self._explain(walked, near, tokens, restored, reason)
            return Explanation(None, tokens, restored)
        except Exception:
            _log.exception("a look-up is not explained")
            return Explanation(reason and reasons.word(reason), tokens, restored)

    def _nearest(self, chain: KeyChain, tokens: int, number: int | None) -> Nearest | None:
        prompt = chain.tokens[:tokens]
        if number is None:
            return self.history.nearest(chain.namespace, prompt)
        return self.history.ask(number, chain.namespace, prompt)

    def _explain(
        self, walked: Walked, near: Nearest | None, tokens: int, restored: int, reason: str
    ) -> Explanation:
        chain = walked.chain
        points = any(group != PAGED for group in walked.groups)
        prompt = chain.tokens[:tokens]
        met = Met(
            tokens, restored, walked.matched, chain.block_size, reason, walked.lacking, points
        )
        word = reasons.word(reason)
        departure = None
        deeper = False
        if word == reasons.ABSENT:
            missed = restored // chain.block_size * chain.block_size + chain.block_size
            departure = self._departure(chain, [missed], walked.groups[:1])
            deeper = departure is None and self._is_deeper(chain, missed, walked.groups[:1])
        elif word == reasons.NO_RESTORE_POINT:
            aging = [group for group in walked.groups if group != PAGED]
            departure = self._departure(chain, _points(walked, restored, near), aging)
        elsewhere = None if restored else self._others.find(chain, walked.groups)
        known = Known(
            nearest=near,
            departure=departure,
            deeper=deeper,
            forgetful=self._tiers.departures.forgetful,
            elsewhere=elsewhere,
            remembers=self.history.enabled,
        )
        return explain(met, known, prompt)

    def _departure(
        self, chain: KeyChain, ends: Iterable[int], groups: Sequence[str]
    ) -> Departure | None:
        """Return how the deepest page left of those that might have helped."""
        for end in ends:
            if 0 < end <= len(chain):
                key = chain.key(end)
                for group in groups:
                    departure = self._tiers.departures.find(PageId(key, group))
                    if departure is not None:
                        return departure
        return None

    def _is_deeper(self, chain: KeyChain, missed: int, groups: Sequence[str]) -> bool:
        size = chain.block_size
        ends = range(missed + size, min(len(chain), missed + DEEPER_BLOCKS * size) + 1, size)
        pages = (PageId(chain.key(end), group) for end in ends for group in groups)
        return any(self._tiers.find(page) is not None for page in pages)


def _points(walked: Walked, restored: int, near: Nearest | None) -> list[int]:
    """Return where a window or a state may have been, the deepest first."""
    size = walked.chain.block_size
    last = walked.matched // size * size
    first = max(restored // size * size, last - LEADING_BLOCKS * size)
    ends = {walked.matched, *range(last, first, -size)}
    if near is not None:
        ends |= {end for end in (near.length, near.length - 1) if restored < end <= near.shared}
    return sorted(ends, reverse=True)
