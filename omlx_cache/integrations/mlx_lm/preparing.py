"""Computes what conversations go on with, while there is no request."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from omlx_cache.integrations.mlx_lm.served_cache import ServedPromptCache
from omlx_cache.preparation import Preparation
from omlx_cache.settings.machine import saves_power
from omlx_cache.store import BlockStore
from omlx_cache_storage.keys import Tokens, as_tokens, shared_length

_log = logging.getLogger(__name__)

CALL_TOKENS = 4096
"""Prepared at most after a tool call: its result is there within seconds."""
TURN_TOKENS = 32_768
"""After a final answer, when a template may write a whole tool loop anew."""
EXPECTED = 16
EXPIRES_SECONDS = 600.0
"""After so long a conversation has most likely ended, or is cached no more."""
UNASKED = 5
"""After so many in a row that nobody asked for, one is tried in `BACK_OFF_SECONDS`."""
BACK_OFF_SECONDS = 600.0
POWER_SECONDS = 30.0
"""For how long the platform's answer counts whether it saves power."""


@dataclass(eq=False, slots=True)
class _Expected:
    """What a prompt for a model will begin with, and how much of it may be computed. It shares
    `asked` tokens with the prompt that was answered; `deletions` were so many then."""

    key: Any
    tokens: Tokens
    most: int
    asked: int
    deletions: int
    at: float


class Preparing:
    """Computes what is expected, a chunk at a time, and stops when a request arrives. Nothing
    raises.

    `expect` and `is_worth_it` are for any thread, the rest for the one that runs the model.
    Mutable: `_expected`, the latest last, each operation on which is atomic. `_asking` guards
    `_saves`, the platform's latest answer about its power, and `_asked`, its time. The model's
    thread owns `_current`, the preparation in progress, `_of`, its expectation, and `_begun`.
    """

    def __init__(
        self,
        store: BlockStore,
        cache: ServedPromptCache,
        power: Callable[[], bool] = saves_power,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._cache = store, cache
        self._power, self._clock = power, clock
        self._expected: deque[_Expected] = deque(maxlen=EXPECTED)
        self._current: Preparation | None = None
        self._of: _Expected | None = None
        self._asked = self._begun = -math.inf
        self._saves = False
        self._asking = threading.Lock()

    @property
    def is_worth_it(self) -> bool:
        """False while nothing is prepared: it is off, memory is short, or power is saved. On macOS
        it may wait for a process."""
        if self._store.settings.prepare == "off" or self._store.is_short_of_memory:
            return False
        self._ask_for_power()
        return not self._saves

    def _ask_for_power(self) -> None:
        with self._asking:
            if not self._knows_power:
                self._saves, self._asked = self._power(), self._clock()

    @property
    def _knows_power(self) -> bool:
        return self._clock() - self._asked <= POWER_SECONDS

    def expect(
        self, key: Any, tokens: Sequence[int], most: int, prompt: Sequence[int], deletions: int
    ) -> None:
        """Note what will follow a prompt for a model: at most so many tokens of it are computed,
        and none if there was a deletion since `deletions` were so many."""
        expected, now = as_tokens(tokens), self._clock()
        asked = shared_length(expected, as_tokens(prompt))
        self._expected.append(_Expected(key, expected, most, asked, deletions, now))

    @property
    def ready(self) -> bool:
        """Whether `step` has something to do."""
        now = self._clock()
        if self._current is None:
            if not any(now - one.at <= EXPIRES_SECONDS for one in self._expected.copy()):
                return False
            backs_off = self._store.requests.prepared.unasked(UNASKED)
            if backs_off and now - self._begun < BACK_OFF_SECONDS:
                return False
        if not self._knows_power and not self._asking.locked():
            # It may wait for a process. Without a thread it is asked for later.
            with suppress(RuntimeError):
                threading.Thread(target=self._ask_for_power, daemon=True).start()
        if self._current is not None:
            return self._current.ready
        return self._knows_power and not self._saves

    def step(self, key: Any, model: Any) -> None:
        """Compute a chunk for the model that is loaded under a key."""
        if not self.ready:
            return
        try:
            if self._current is None:
                # The latest conversation is the likeliest to go on.
                self._of = one = self._expected.pop()
                self._begun = self._clock()
                if one.key == key and self._begun - one.at <= EXPIRES_SECONDS:
                    self._current = self._cache.preparation(key, one.tokens, one.most)
                if one.deletions != self._store.deletions:
                    self._current = None
            elif self._saves or not self._current.step(model):
                self.give_up()
        except Exception:
            # Where nobody is answered, an error would end the server.
            _log.exception("a preparation ended")
            self._current = None

    def give_up(self, prompt: Sequence[int] = ()) -> None:
        """Store the tokens that were computed so far, and still expect the others; but drop the
        conversation that an arrived prompt continues."""
        if self._current is not None and self._of is not None:
            if not self._current.is_over:
                self._expected.append(self._of)
            self._current.close()
            if self._current.computed:
                self._cache.note_prepared(self._of.key, self._of.tokens)
            self._current = None
            mx.clear_cache()
        # From a list of 128,000 it takes milliseconds.
        tokens = as_tokens(prompt if self._expected else ())
        shared = {one: shared_length(one.tokens, tokens) for one in self._expected.copy()}
        # Another conversation shares no more than what clients say to all.
        continued = [one for one, length in shared.items() if length >= max(1, one.asked)]
        if continued:
            with suppress(ValueError):
                self._expected.remove(max(continued, key=shared.__getitem__))
