"""The tokens of recent prompts and their answers: memory of this process only, and bounded."""

import threading
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from omlx_cache_storage.interrupts import uninterrupted
from omlx_cache_storage.keys import BlockKey, Tokens, shared_length

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


class Nearest(NamedTuple):
    """The known prompt that shares most of another one: `shared` tokens."""

    prompt: KnownPrompt
    shared: int

    @property
    def is_continued(self) -> bool:
        """True when the other prompt has all of it and its answer."""
        return self.shared == len(self.prompt.tokens)

    @property
    def is_answered(self) -> bool:
        return len(self.prompt.tokens) > self.prompt.prompt_length

    def is_alike(self, tokens: Tokens) -> bool:
        """True when a piece of the known text comes again a little behind the place where they
        part."""
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


class PromptHistory:
    """Remembers the latest prompts within `limit_bytes`; one that continues another replaces it.

    Prompts are compared within a namespace only, so never across salts. Any thread may call;
    nothing raises. `_lock` guards `_prompts`, the latest last.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.began = time.time()
        self._lock = threading.Lock()
        self._prompts: list[KnownPrompt] = []

    @property
    def enabled(self) -> bool:
        return self.limit_bytes > 0

    @property
    @uninterrupted
    def nbytes(self) -> int:
        """Bytes of tokens that are remembered."""
        with self._lock:
            return _nbytes(self._prompts)

    @uninterrupted
    def nearest(self, namespace: BlockKey, tokens: Tokens) -> Nearest | None:
        """Return the prompt that shares most with these tokens, the latest of equals; None when
        none shares any."""
        tokens = compact(tokens)
        with self._lock:
            return self._nearest(namespace, tokens)

    @uninterrupted
    def ask(self, number: int, namespace: BlockKey, tokens: Tokens) -> Nearest | None:
        """`nearest`, and remember the prompt as that of a request; copies it."""
        if not self.enabled:
            return None
        tokens = compact(tokens)
        with self._lock:
            near = self._nearest(namespace, tokens)
            stored = 0 if near is None else min(near.shared, near.prompt.stored)
            prompt = KnownPrompt(number, time.time(), namespace, tokens, len(tokens), stored)
            # What has no answer may be in flight, and store one under its own prompt.
            if near is not None and near.is_continued and near.is_answered:
                self._prompts = [known for known in self._prompts if known is not near.prompt]
            self._prompts.append(prompt)
            self._trim()
            return near

    @uninterrupted
    def store(
        self, namespace: BlockKey, tokens: Tokens, end: int, skipped: Mapping[str, int]
    ) -> None:
        """Note that the first `end` tokens of a sequence were handed to the tiers, and what was
        left out; what goes on from a known prompt is its answer."""
        if not self.enabled:
            return
        tokens = compact(tokens)
        with self._lock:
            own = [
                near
                for near in self._compared(namespace, tokens)
                if near.is_continued or near.shared == len(tokens)
            ]
            if not own:
                return
            known = max(own, key=lambda near: near.shared).prompt
            noted = known._replace(
                tokens=max(known.tokens, tokens, key=len),
                # Which pages were left out is not said: perhaps all.
                stored=0 if skipped else max(known.stored, end),
                skipped=max(skipped, key=skipped.__getitem__, default=""),
            )
            self._prompts = [noted if one is known else one for one in self._prompts]
            self._trim()

    @uninterrupted
    def texts(self, namespace: BlockKey) -> list[Tokens]:
        """Return the prompts of a namespace with their answers, the latest first."""
        with self._lock:
            return [p.tokens for p in reversed(self._prompts) if p.namespace == namespace]

    @uninterrupted
    def forget(self, namespace: BlockKey) -> None:
        """Remember no prompt of a namespace any more."""
        with self._lock:
            self._prompts = [known for known in self._prompts if known.namespace != namespace]

    def _trim(self) -> None:
        nbytes = _nbytes(self._prompts)
        while self._prompts and (nbytes > self.limit_bytes or len(self._prompts) > PROMPTS):
            nbytes -= self._prompts.pop(0).tokens.nbytes

    def _nearest(self, namespace: BlockKey, tokens: Tokens) -> Nearest | None:
        compared = self._compared(namespace, tokens)
        near = max(compared, key=lambda near: near.shared, default=None)
        return near if near is not None and near.shared else None

    def _compared(self, namespace: BlockKey, tokens: Tokens) -> Iterator[Nearest]:
        """Yield the prompts of a namespace with what they share, the latest first."""
        left = COMPARED_TOKENS
        for known in reversed(self._prompts):
            if known.namespace == namespace and left > 0:
                shared = shared_length(known.tokens, tokens)
                left -= shared + 1024
                yield Nearest(known, shared)


def compact(tokens: Tokens) -> Tokens:
    """Return a copy of the tokens in four bytes each, where they fit."""
    small = tokens.astype(np.int32)
    # Servers name images by large numbers.
    return small if np.array_equal(small, tokens) else tokens.copy()  # type: ignore[return-value]


def _nbytes(prompts: list[KnownPrompt]) -> int:
    return sum(known.tokens.nbytes for known in prompts)


def _pieces(tokens: Tokens) -> Iterator[tuple[int, ...]]:
    """Yield each run of `PIECE_TOKENS` tokens."""
    return zip(*(tokens[start:].tolist() for start in range(PIECE_TOKENS)), strict=False)
