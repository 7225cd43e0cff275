"""mlx-lm's ResponseGenerator, whose requests do not compute the same at the same time."""

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from mlx_lm.server import TimeBudget

from omlx_cache.flights import Flights
from omlx_cache.integrations.mlx_lm.server.checked import CheckedResponseGenerator
from omlx_cache.integrations.mlx_lm.server.held import Arrival, HeldRequests, still
from omlx_cache.integrations.mlx_lm.server.limits import Limits
from omlx_cache.integrations.mlx_lm.server.replies import EarlyContext
from omlx_cache.mlx_lm_versions import context_fields, has_images
from omlx_cache.store import BlockStore
from omlx_cache_storage.keys import Tokens, as_tokens

_log = logging.getLogger(__name__)


class Shares(Protocol):
    """Who knows what is kept and what is computed: the prompt cache."""

    def worth_waiting(self, model: Any, tokens: Tokens) -> bool: ...


class SharingResponseGenerator(CheckedResponseGenerator):
    """Holds a request whose next blocks another one is computing, until they are there.

    It is held where mlx-lm takes requests from its queue, so that nothing of it is computed or
    restored meanwhile; others overtake it. Only who would join the batch is held. `_held` and
    `_joined`, the model that was asked for by the request that mlx-lm tokenised last, belong to the
    generation thread.
    """

    def __init__(self, provider: Any, cache: Shares, store: BlockStore, limits: Limits) -> None:
        self._shared = cache
        self._flights: Flights = store.flights
        self._held = HeldRequests(lambda: self._flights.changes, self._flights.wait_seconds)
        self._joined: Any = None
        super().__init__(provider, cache, limits)

    def _compute(self) -> None:
        self._time_budget = _Budget(self._held.has_free)
        super()._compute()

    def _next_request(self, timeout: float | None = None) -> Any:
        while True:
            free = self._held.take()
            if free is not None:
                return free
            if self._held.closed:
                # mlx-lm has no more to do than to ask again, where it lets us wait.
                time.sleep(timeout or 0.0)
                return None
            arrived = super()._next_request(timeout)
            if arrived is None or not self._holds(Arrival(*arrived)):
                return arrived

    def _tokenize(self, tokenizer: Any, request: Any, args: Any) -> tuple[Any, ...]:
        self._joined = args.model
        return super()._tokenize(tokenizer, request, args)

    def _holds(self, arrival: Arrival) -> bool:
        """Keep a request that is to wait; False for one that is not."""
        if self._flights.idle and not self._held:
            return False
        if not self._joins(arrival):
            return self._held.close_with(arrival)
        provider = self.model_provider
        try:
            parts = self._tokenised(provider.tokenizer, arrival.request, arrival.args)
        except Exception:
            # mlx-lm meets it again, and tells the client.
            return False
        tokens = as_tokens(parts[0])
        waits = partial(self._shared.worth_waiting, provider.model_key, tokens)
        if not still(waits):
            return False
        arrival.reply.put(self._early_context(arrival, parts))
        self._held.add(arrival, len(tokens), waits)
        _log.info("a request of %d tokens waits for another that computes its prefix", len(tokens))
        return True

    def _early_context(self, arrival: Arrival, parts: tuple[Any, ...]) -> EarlyContext:
        tokenizer, key = self.model_provider.tokenizer, self.model_provider.model_key
        _stops, machine = self._make_state_machine(key, tokenizer, arrival.args.stop_words)
        return EarlyContext(
            has_tool_calling=tokenizer.has_tool_calling,
            has_thinking=tokenizer.has_thinking,
            tool_parser=tokenizer.tool_parser,
            prompt=parts[0],
            **context_fields(machine, parts[3]),
        )

    def _joins(self, arrival: Arrival) -> bool:
        """True for a request that mlx-lm would add to the batch that is computed."""
        return (
            arrival.args.model == self._joined
            and self._is_batchable(arrival.args)
            and not has_images(arrival.request.messages)
        )


class _Budget(TimeBudget):  # type: ignore[misc]
    """How long mlx-lm computes before it looks for requests: not on when one has become free."""

    def __init__(self, has_free: Callable[[], bool]) -> None:
        super().__init__()
        self._has_free = has_free
        self._begun = False

    def __iter__(self) -> Any:
        self._begun = False
        return super().__iter__()

    def __next__(self) -> None:
        # At least one step, whoever is free.
        if self._begun and self._has_free():
            raise StopIteration
        self._begun = True
        super().__next__()
