"""Finds why no more of a prompt was restored: from the lookup, the pages that left the tiers, and
the tokens of recent prompts. It runs on the path of a request, so in bounded time."""

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from omlx_cache import reasons
from omlx_cache.requests.explanation import DELETED, Explanation
from omlx_cache_storage.events import Departure, How
from omlx_cache_storage.keys import BlockKey, KeyChain, Tokens, shared_length
from omlx_cache_storage.page import PAGED, PageId
from omlx_cache_storage.tiers import Tiers

_log = logging.getLogger(__name__)

PROMPTS = 512
COMPARED_TOKENS = 2**19
"""Tokens that one search compares at most: a few tenths of a millisecond."""

ALIKE_TOKENS = 32
"""So many equal tokens after a difference tell a changed line from another text."""
OPENING_TOKENS = 32
"""The longest opening of an answer that is recognised: role, reasoning tag, line ends."""
PIECE_TOKENS = 4
"""So many tokens of an answer in a row are not in another text by chance."""
ANSWER_TOKENS, RETURNED_TOKENS = 16_384, 1024
"""How much of the end of an answer is looked for, and in how much of what follows."""
BEFORE, AFTER = 24, 16
"""Tokens of an excerpt before the place where two prompts part, and behind it."""
LEAST_SHARED = 8
"""Prompts that share fewer tokens have only the beginning of their template in common."""
DEEPER_BLOCKS = 8
"""How many blocks behind a missing one are looked for."""
LEADING_BLOCKS = 1024
"""How many blocks before the known end are looked through for a window or state."""

_GONE: dict[How, str] = {
    "memory": "from memory",
    "disk": "from the disk",
    "removed": DELETED,
    "damaged": "damaged",
}


class KnownPrompt(NamedTuple):
    """A prompt, the first `prompt_length` of `tokens`, and its answer. `stored` tokens were handed
    to the tiers, the last time with pages left out for the reason `skipped`."""

    number: int
    asked_at: float
    namespace: BlockKey
    tokens: Tokens
    prompt_length: int
    stored: int = 0
    skipped: str = ""


_NBYTES = attrgetter("tokens.nbytes")


class Nearest(NamedTuple):
    prompt: KnownPrompt
    shared: int

    @property
    def is_continued(self) -> bool:
        return self.shared == len(self.prompt.tokens)

    def is_alike(self, tokens: Tokens) -> bool:
        """True when a piece of the known text comes again a little behind the parting."""
        start = self.shared + ALIKE_TOKENS
        piece = self.prompt.tokens[start : start + ALIKE_TOKENS]
        behind = tokens[self.shared : start + 3 * ALIKE_TOKENS]
        if len(piece) < ALIKE_TOKENS or len(behind) < ALIKE_TOKENS:
            return False
        return bool((sliding_window_view(behind, ALIKE_TOKENS) == piece).all(axis=1).any())

    def is_rewritten(self, tokens: Tokens) -> bool:
        """True when they part in the known answer, or in what opens it and a piece of the answer
        comes again behind the place."""
        theirs, length = self.prompt.tokens, self.prompt.prompt_length
        if self.is_continued or len(tokens) <= length:
            return False
        if self.shared >= length + PIECE_TOKENS:
            return True
        if self.shared < length - OPENING_TOKENS:
            return False
        returned = set(_pieces(tokens[min(self.shared, length) : self.shared + RETURNED_TOKENS]))
        return not returned.isdisjoint(_pieces(theirs[length:][-ANSWER_TOKENS:]))


class Walked(NamedTuple):
    """A lookup along a chain, in a scope of these layer groups. `lacking` is the kind of page that
    is missing at its end beside blocks: `window`, `state` or nothing."""

    chain: KeyChain
    groups: Sequence[str]
    matched: int
    lacking: str


class Explainer:
    """Explains lookups by what left the tiers and by the latest prompts, which it remembers within
    `limit_bytes`; one that continues another replaces it.

    Prompts are compared within a namespace only, so never across salts. Any thread may call;
    nothing raises, nothing is read from a disk. `_lock` guards `_prompts`, the latest last.
    """

    def __init__(self, limit_bytes: int, tiers: Tiers) -> None:
        self.limit_bytes = limit_bytes
        self._tiers = tiers
        self.began = time.time()
        self._lock = threading.Lock()
        self._prompts: list[KnownPrompt] = []

    @property
    def nbytes(self) -> int:
        with self._lock:
            return sum(map(_NBYTES, self._prompts))

    def ask(self, number: int | None, namespace: BlockKey, tokens: Tokens) -> Nearest | None:
        """Return the prompt that shares most with these tokens, the latest of equals; None when
        none shares any. With the number of its request the prompt is remembered, as a copy."""
        tokens = compact(tokens)
        with self._lock:
            near = self._nearest(namespace, tokens)
            if number is not None:
                # A prompt without an answer may be in flight, and store one under its own prompt.
                if near and near.is_continued and near.shared > near.prompt.prompt_length:
                    self._prompts = [known for known in self._prompts if known is not near.prompt]
                stored = min(near.shared, near.prompt.stored) if near else 0
                self._prompts.append(
                    KnownPrompt(number, time.time(), namespace, tokens, len(tokens), stored)
                )
                self._trim()
            return near

    def store(
        self, namespace: BlockKey, tokens: Tokens, end: int, skipped: Mapping[str, int]
    ) -> None:
        """Note that the first `end` tokens of a sequence were handed to the tiers, and what was
        left out. A sequence that continues a known prompt is its answer."""
        tokens = compact(tokens)
        with self._lock:
            nearest = self._nearest(namespace, tokens, own=True)
            if nearest is not None:
                known = nearest.prompt
                noted = known._replace(
                    tokens=max(known.tokens, tokens, key=len),
                    # Which pages were left out is not said: perhaps all.
                    stored=0 if skipped else max(known.stored, end),
                    skipped=max(skipped, key=skipped.__getitem__, default=""),
                )
                self._prompts = [noted if one is known else one for one in self._prompts]
                self._trim()

    def texts(self, namespace: BlockKey) -> list[Tokens]:
        with self._lock:
            return [p.tokens for p in reversed(self._prompts) if p.namespace == namespace]

    def forget(self, namespace: BlockKey) -> None:
        with self._lock:
            self._prompts = [known for known in self._prompts if known.namespace != namespace]

    def _trim(self) -> None:
        nbytes = sum(map(_NBYTES, self._prompts))
        while self._prompts and (nbytes > self.limit_bytes or len(self._prompts) > PROMPTS):
            nbytes -= self._prompts.pop(0).tokens.nbytes

    def _nearest(self, namespace: BlockKey, tokens: Tokens, *, own: bool = False) -> Nearest | None:
        """Return the prompt of a namespace that shares most tokens, the latest of equals; `own`:
        only one that these tokens continue, or that continues them."""
        nearest, most, left = None, 0, COMPARED_TOKENS
        for known in reversed(self._prompts):
            if known.namespace == namespace and left > 0:
                near = Nearest(known, shared_length(known.tokens, tokens))
                left -= near.shared + 1024
                fits = not own or near.is_continued or near.shared == len(tokens)
                if fits and near.shared > most:
                    nearest, most = near, near.shared
        return nearest

    def explain(
        self,
        walked: Walked | None,
        tokens: int,
        restored: int,
        reason: str | None,
        number: int | None = None,
    ) -> Explanation:
        """Return why no more of a prompt was restored; with its request's number it is
        remembered."""
        word, _, detail = (reason or "").partition(":")
        # The detail of a prompt that was not looked up may contain a piece of it.
        told = Explanation(word or None, tokens, restored, detail="" if walked is None else detail)
        if walked is None:
            return told
        try:
            prompt = walked.chain.tokens[:tokens]
            near = self.ask(number, walked.chain.namespace, prompt)
            if word in (reasons.ABSENT, reasons.NO_RESTORE_POINT):
                return self._explained(told, walked, near, prompt)
        except Exception:
            _log.exception("a lookup is not explained")
        return told

    def _explained(
        self, told: Explanation, walked: Walked, near: Nearest | None, prompt: Tokens
    ) -> Explanation:
        """Return the reason that what left the tiers gives, or the nearest prompt."""
        word, restored, chain = told.reason, told.restored, walked.chain
        size = chain.block_size
        departure = self._departure(walked, restored, near, word)
        cold = self._tiers.cold
        rationed = "rationed" if cold is not None and cold.room == "rationed" else ""
        trouble = rationed if cold is None else cold.trouble.partition(":")[0] or rationed
        no_disk = replace(told, reason=reasons.NO_DISK, detail=trouble)
        if departure is not None:
            # A disk that is away has removed all its pages; else a person did.
            is_away = trouble == "unavailable" and departure.how == "removed"
            if is_away or (trouble and departure.how == "memory"):
                return no_disk
            return replace(
                told, reason=reasons.EVICTED, detail=_GONE[departure.how], gone_at=departure.at
            )
        if word == reasons.ABSENT:
            first = (restored // size + 2) * size
            ends = range(first, min(len(chain) + 1, first + DEEPER_BLOCKS * size), size)
            deeper = map(PageId, map(chain.key, ends), repeat(walked.groups[0]))
            if any(self._tiers.find_all(list(deeper))):
                return replace(told, reason=reasons.EVICTED, detail="before this start")
        if word == reasons.NO_RESTORE_POINT:
            is_window = walked.lacking == "window"
            word = reasons.WINDOW_NOT_HELD if is_window else reasons.SNAPSHOT_MISSING
        elif self.limit_bytes:
            word = reasons.NEW_TEXT
        is_new, detail = word == reasons.NEW_TEXT, ""
        # What was restored beyond the place where they part is of another prompt.
        if near is None or (near.shared < restored and not near.is_continued):
            return replace(told, reason=word)
        known, shared = near.prompt, near.shared
        if is_new and min(shared, told.tokens - 1) // size * size > restored:
            if trouble and (known.skipped or known.stored > restored):
                return no_disk
            if self._tiers.departures.forgetful and known.stored >= restored + size:
                return replace(told, reason=reasons.EVICTED, detail="a while ago")
            word, detail = reasons.NOT_STORED, known.skipped
        elif near.is_rewritten(prompt):
            word = reasons.REWRITTEN
        elif is_new and not near.is_continued and near.is_alike(prompt):
            word = reasons.DIVERGED
        elif is_new and shared < LEAST_SHARED:
            return replace(told, reason=word)
        start = max(0, shared - BEFORE)
        span = slice(start, shared + AFTER)
        return replace(
            told,
            reason=word,
            detail=detail,
            position=shared,
            other=known.number,
            other_at=known.asked_at,
            other_tokens=len(known.tokens),
            before=shared - start,
            here=tuple(prompt[span].tolist()),
            there=tuple(known.tokens[span].tolist()),
        )

    def _departure(
        self, walked: Walked, restored: int, near: Nearest | None, word: str | None
    ) -> Departure | None:
        chain, size = walked.chain, walked.chain.block_size
        ends, groups = {(restored // size + 1) * size}, walked.groups[:1]
        if word == reasons.NO_RESTORE_POINT:
            # Where a window or a state may have been.
            last = walked.matched // size * size
            first = max(restored // size * size, last - LEADING_BLOCKS * size)
            ends = {walked.matched, *range(last, first, -size)}
            if near is not None:
                length = len(near.prompt.tokens)
                ends |= {end for end in (length, length - 1) if restored < end <= near.shared}
            groups = [group for group in walked.groups if group != PAGED]
        for end in sorted(ends, reverse=True):
            for group in groups if 0 < end <= len(chain) else ():
                departure = self._tiers.departures.find(PageId(chain.key(end), group))
                if departure is not None:
                    return departure
        return None


def compact(tokens: Tokens) -> Tokens:
    small = tokens.astype(np.int32)
    # Servers name images by large numbers.
    return small if np.array_equal(small, tokens) else tokens.copy()  # type: ignore[return-value]


def _pieces(tokens: Tokens) -> Iterator[tuple[int, ...]]:
    return zip(*(tokens[start:].tolist() for start in range(PIECE_TOKENS)), strict=False)
