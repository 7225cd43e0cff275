"""The tokens of recent prompts and their answers: memory of this process only, and bounded."""

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from omlx_cache.requests.parting import goes_on_alike, opening
from omlx_cache_storage.interrupts import uninterrupted
from omlx_cache_storage.keys import BlockKey, Tokens, shared_length

PROMPTS = 512
COMPARED_TOKENS = 2**19
"""What one search compares at most: a few tenths of a millisecond."""


class Sequence:
    """Tokens that one prompt, or several that continue each other, have in common.

    Mutable, under the history's lock: `tokens` grows; `stored` tokens were handed to the tiers, the
    last time with pages left out for the reason `skipped`.
    """

    __slots__ = ("skipped", "stored", "tokens")

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.stored = 0
        self.skipped = ""


@dataclass(slots=True)
class KnownPrompt:
    """A prompt: the first `prompt_length` tokens of a sequence; with its answer, `length`."""

    number: int
    asked_at: float
    namespace: BlockKey
    sequence: Sequence
    prompt_length: int
    length: int

    @property
    def tokens(self) -> Tokens:
        return self.sequence.tokens[: self.length]


class Nearest(NamedTuple):
    """The known prompt that shares most of another, `shared` tokens, and what it was then.

    `alike` tells that both go on with the same text after the difference, for a good part of the
    prompt. `opening` is how many tokens before the end of the known prompt they part, when its
    answer comes back otherwise: negative for a difference within the answer, by as much of that as
    is equal, None when it does not.
    """

    number: int
    asked_at: float
    shared: int
    length: int
    stored: int
    skipped: str
    alike: bool
    opening: int | None
    tokens: Tokens

    @property
    def continued(self) -> bool:
        """True when the other prompt has all of it and its answer, and goes on."""
        return self.shared == self.length


class PromptHistory:
    """Remembers prompts within `limit_bytes`, the latest; prompts that continue each other share
    their tokens. Any thread may call; nothing raises. `_lock` guards the rest.

    Prompts are compared within a namespace only, so never across salts.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.began = time.time()
        self._lock = threading.Lock()
        self._prompts: deque[KnownPrompt] = deque()
        self._nbytes = 0

    @property
    def enabled(self) -> bool:
        return self.limit_bytes > 0

    @property
    @uninterrupted
    def nbytes(self) -> int:
        """Bytes of tokens that are remembered."""
        with self._lock:
            return self._nbytes

    @uninterrupted
    def nearest(self, namespace: BlockKey, tokens: Tokens) -> Nearest | None:
        """Return the prompt that shares most with these tokens, the latest of equals; None when
        none shares any."""
        tokens = compact(tokens)
        with self._lock:
            known, shared = self._longest(namespace, tokens)
            return None if known is None else _related(known, shared, tokens)

    @uninterrupted
    def ask(self, number: int, namespace: BlockKey, tokens: Tokens) -> Nearest | None:
        """`nearest`, and remember the prompt as that of a request; copies it."""
        if not self.enabled:
            return None
        tokens = compact(tokens)
        with self._lock:
            known, shared = self._longest(namespace, tokens)
            found = None if known is None else _related(known, shared, tokens)
            sequence = None if known is None else known.sequence
            if sequence is not None and shared == len(sequence.tokens):
                self._replace(sequence, tokens)
            elif sequence is None or shared < len(tokens):
                sequence = Sequence(tokens)
                self._nbytes += tokens.nbytes
            length = len(tokens)
            prompt = KnownPrompt(number, time.time(), namespace, sequence, length, length)
            self._prompts.append(prompt)
            self._trim()
            return found

    @uninterrupted
    def store(
        self, namespace: BlockKey, tokens: Tokens, end: int, skipped: Mapping[str, int]
    ) -> int | None:
        """Note that the first `end` tokens of a sequence were handed to the tiers, and what was
        left out; what goes on from a known prompt is its answer. Return that prompt's length, None
        when it is not known."""
        if not self.enabled:
            return None
        tokens = compact(tokens)
        with self._lock:
            known = self._asked(namespace, tokens)
            if known is None:
                return None
            if known.length < len(tokens):
                self._answer(known, tokens)
            sequence = known.sequence
            # Which pages found no room is not said: perhaps all.
            sequence.stored = 0 if skipped else max(sequence.stored, end)
            sequence.skipped = max(skipped, key=skipped.__getitem__, default="")
            return known.prompt_length

    @uninterrupted
    def texts(self, namespace: BlockKey) -> list[Tokens]:
        """Return the tokens that are remembered of a namespace, each sequence once, the latest
        first."""
        with self._lock:
            own = {id(p.sequence): p.sequence for p in reversed(self._prompts)
                   if p.namespace == namespace}  # fmt: skip
            return [sequence.tokens for sequence in own.values()]

    @uninterrupted
    def forget(self, namespace: BlockKey) -> None:
        """Remember no prompt of a namespace any more."""
        with self._lock:
            self._prompts = deque(p for p in self._prompts if p.namespace != namespace)
            kept = {id(p.sequence): p.sequence.tokens.nbytes for p in self._prompts}
            self._nbytes = sum(kept.values())

    def _asked(self, namespace: BlockKey, tokens: Tokens) -> KnownPrompt | None:
        """Return the prompt that a sequence, or its part, belongs to."""
        best: KnownPrompt | None = None
        for known, shared in self._compared(namespace, tokens):
            within = shared == len(tokens)
            if (within or shared == known.length) and (best is None or known.length > best.length):
                best = known
                if within:
                    break
        return best

    def _answer(self, known: KnownPrompt, tokens: Tokens) -> None:
        sequence = known.sequence
        if len(sequence.tokens) == known.length:
            self._replace(sequence, tokens)
        elif shared_length(sequence.tokens, tokens) < len(tokens):
            # Another answer to the same prompt is remembered already.
            stored = min(sequence.stored, known.length)
            known.sequence = Sequence(tokens)
            known.sequence.stored = stored
            self._nbytes += tokens.nbytes
            self._release(sequence)
        known.length = len(tokens)
        self._trim()

    def _replace(self, sequence: Sequence, tokens: Tokens) -> None:
        self._nbytes += tokens.nbytes - sequence.tokens.nbytes
        sequence.tokens = tokens

    def _trim(self) -> None:
        while self._prompts and (self._nbytes > self.limit_bytes or len(self._prompts) > PROMPTS):
            self._release(self._prompts.popleft().sequence)

    def _release(self, sequence: Sequence) -> None:
        """Count a sequence no more, unless a prompt still has it."""
        if all(known.sequence is not sequence for known in self._prompts):
            self._nbytes -= sequence.tokens.nbytes

    def _longest(self, namespace: BlockKey, tokens: Tokens) -> tuple[KnownPrompt | None, int]:
        best: KnownPrompt | None = None
        most = 0
        for known, shared in self._compared(namespace, tokens):
            if shared > most:
                best, most = known, shared
            if most == len(tokens):
                break
        return best, most

    def _compared(self, namespace: BlockKey, tokens: Tokens) -> Iterator[tuple[KnownPrompt, int]]:
        """Yield the prompts of a namespace with what they share, the latest first."""
        left = COMPARED_TOKENS
        shares: dict[int, int] = {}
        for known in reversed(self._prompts):
            if known.namespace != namespace:
                continue
            at = id(known.sequence)
            if at not in shares:
                if left <= 0:
                    break
                shares[at] = shared_length(known.sequence.tokens, tokens)
                left -= shares[at] + 1024
            yield known, min(shares[at], known.length)


def compact(tokens: Tokens) -> Tokens:
    """Return a copy of the tokens in four bytes each, where they fit."""
    small = tokens.astype(np.int32)
    # Servers name images by large numbers.
    return small if np.array_equal(small, tokens) else tokens.copy()  # type: ignore[return-value]


def _related(known: KnownPrompt, shared: int, tokens: Tokens) -> Nearest:
    theirs = known.tokens
    return Nearest(
        known.number,
        known.asked_at,
        shared,
        known.length,
        known.sequence.stored,
        known.sequence.skipped,
        goes_on_alike(theirs, tokens, shared),
        opening(theirs, known.prompt_length, tokens, shared),
        theirs,
    )
