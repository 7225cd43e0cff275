"""The way back to one request's client, as the generation thread has it."""

import logging
import time
from typing import Any, NamedTuple

from mlx_lm.server import GenerationContext, Response

from omlx_cache.integrations.mlx_lm.fetched import Fetched
from omlx_cache.integrations.mlx_lm.server.ending import Ending
from omlx_cache.integrations.mlx_lm.server.failures import FailedInputs, InputDigest
from omlx_cache.integrations.mlx_lm.server.refusals import (
    BadRequest,
    ComputationFailed,
    Refused,
)
from omlx_cache_storage.hints import Ended

_log = logging.getLogger(__name__)


class Tokenised(NamedTuple):
    """A prompt's parts, or why it is refused, as one tokeniser has it."""

    tokenizer: Any
    parts: tuple[Any, ...] | BadRequest


class EarlyContext(GenerationContext):  # type: ignore[misc]
    """What a client is answered before mlx-lm has taken its request: so it hears that it is alive,
    and can leave. Whoever stops it stops what becomes of it."""

    _becomes: GenerationContext | None = None

    def stop(self) -> None:
        super().stop()
        if self._becomes is not None:
            self._becomes.stop()

    def become(self, context: GenerationContext) -> None:
        """Give way to mlx-lm's own."""
        self.prompt_cache_count = context.prompt_cache_count
        self._becomes = context
        if self._should_stop:
            context.stop()


class Reply:
    """Stands in for the response queue. An error that is met after the prompt was accepted is a
    failed computation, and the input is remembered.

    The context that its client gets has it as `reply`: mlx-lm's own, or an early one.
    Mutable, by the generation thread: `tokenised` and `digest`, once the prompt is, `held`, true
    while it waits before the generator, `held_seconds`, `fetched`, once it is known what is
    restored, `ended`, how its answer did, `_ending`, `_context`, `_ended`. `arrived` is the moment,
    by `time.perf_counter`, when its client's request was there: what it waits for counts from then.
    """

    def __init__(
        self,
        queue: Any,
        failures: FailedInputs,
        arrived: float | None = None,
        *,
        offered_tools: bool = False,
    ) -> None:
        self.ended: Ended | None = None
        self._ending: Ending | None = None
        self._offered_tools = offered_tools
        self.arrived = time.perf_counter() if arrived is None else arrived
        self._queue = queue
        self._failures = failures
        self._context: Any = None
        self._ended = False
        self.tokenised: Tokenised | None = None
        self.digest: InputDigest | None = None
        self.held = False
        self.held_seconds = 0.0
        self.fetched: Fetched | None = None

    @property
    def gone(self) -> bool:
        """True when its client has left, or was answered."""
        return self._ended or (self._context is not None and self._context._should_stop)

    def put(self, item: Any) -> None:
        """Send an item to the client's thread; never blocks."""
        if isinstance(item, GenerationContext):
            early, self._context = self._context, item
            item.reply = self
            self._ending = Ending(item, self._offered_tools)
            if early is not None:
                early.become(item)
                return
        if isinstance(item, Exception) and self._context is not None:
            self.fail(item)
            return
        if isinstance(item, Response) and self._ending is not None:
            self.ended = self._ending.read(item.text, item.finish_reason)
        self._ended = self._ended or item is None
        self._queue.put(item)

    def fail(self, error: Exception) -> None:
        """End the request with an error; one that has its answer keeps it."""
        if self._ended:
            return
        self._ended = True
        if not isinstance(error, Refused):
            text = f"the model failed: {type(error).__name__}: {error}"
            _log.error("%s", text, exc_info=error)
            if self.digest is not None:
                self._failures.add(self.digest, text)
            error = ComputationFailed(text)
        if self._context is not None:
            self._context.stop()
        self._queue.put(error)
