"""Computing what conversations go on with, while there is no request."""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from omlx_cache.integrations.mlx_lm.served_cache import ServedPromptCache
from omlx_cache.preparation import Preparation
from omlx_cache.store import BlockStore
from omlx_cache.upkeep.power import saves_power
from omlx_cache_storage.keys import Tokens, as_tokens, shared_length

_log = logging.getLogger(__name__)

CALL_TOKENS = 4096
"""At most so many are prepared after a tool call: its result is there within seconds."""
TURN_TOKENS = 32_768
"""After a final answer a template may write a whole tool loop anew."""
EXPECTED = 16
UNASKED = 5
"""After so many in a row that nobody asked for, one is tried in `BACK_OFF_SECONDS`."""
BACK_OFF_SECONDS = 600.0
POWER_SECONDS = 30.0
"""For how long the platform's answer counts whether it saves power."""


class _Expected(NamedTuple):
    """What a prompt for a model will begin with, and how much of it may be computed."""

    key: Any
    tokens: Tokens
    most: int


class Preparing:
    """Computes what is expected, a chunk at a time, and stops when a request arrives. Nothing
    raises.

    `expect` and `is_worth_it` are for any thread, the rest for the one that runs the model.
    Mutable: `_expected`, each operation on which is atomic; `_asked` and `_saves`, when and what
    the platform said of its power last; and by the model's thread `_current`, which is computed,
    `_of`, what that was expected as, and `_begun`, when.
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

    @property
    def is_worth_it(self) -> bool:
        """False while nothing is prepared: it is off, memory is short, or power is saved. On macOS
        it may wait for a process."""
        if self._store.settings.prepare == "off" or self._store.is_short_of_memory:
            return False
        now = self._clock()
        if now - self._asked > POWER_SECONDS:
            self._asked, self._saves = now, self._power()
        return not self._saves

    def expect(self, key: Any, tokens: Sequence[int], most: int) -> None:
        """Note what a prompt for a model will begin with: at most so many tokens of it are
        computed."""
        self._expected.append(_Expected(key, as_tokens(tokens), most))

    @property
    def ready(self) -> bool:
        """True when `step` has something to do."""
        if self._current is not None:
            return self._current.ready
        if not self._expected:
            return False
        backs_off = self._store.requests.prepared.unasked(UNASKED)
        return not backs_off or self._clock() - self._begun >= BACK_OFF_SECONDS

    def step(self, key: Any, model: Any) -> None:
        """Compute a chunk for the model that is loaded under a key."""
        if not self.ready:
            return
        try:
            if self._current is None:
                self._of = self._expected.popleft()
                self._begun = self._clock()
                if self._of.key == key:
                    self._current = self._cache.preparation(key, self._of.tokens, self._of.most)
            elif not self._current.step(model):
                self.give_up()
        except Exception:
            # Where nobody is answered, an error would end the server.
            _log.exception("a preparation ended")
            self._current = None

    def give_up(self, prompt: Sequence[int] = ()) -> None:
        """Store what was computed so far; a request for a prompt, which has arrived, is the one
        that was expected of its conversation."""
        if self._current is not None and self._of is not None:
            self._current.close()
            if self._current.computed:
                self._cache.note_prepared(self._of.key, self._of.tokens)
            self._current = None
            mx.clear_cache()
        tokens = as_tokens(prompt)
        for _ in range(len(self._expected)):
            one = self._expected.popleft()
            # Another conversation shares no more than what a client says to all.
            if 2 * shared_length(one.tokens, tokens) <= len(one.tokens):
                self._expected.append(one)
