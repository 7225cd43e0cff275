"""The way back to one request's client, as the generation thread has it."""

import logging
from typing import Any, NamedTuple

from mlx_lm.server import GenerationContext

from omlx_cache.integrations.mlx_lm.fetched import Fetched
from omlx_cache.integrations.mlx_lm.server.failures import FailedInputs, InputDigest
from omlx_cache.integrations.mlx_lm.server.refusals import (
    BadRequest,
    ComputationFailed,
    Refused,
)

_log = logging.getLogger(__name__)


class Tokenised(NamedTuple):
    """A prompt's parts, or why it is refused, as one tokeniser has it."""

    tokenizer: Any
    parts: tuple[Any, ...] | BadRequest


class Reply:
    """Stands in for the response queue. An error that is met after the prompt was accepted is a
    failed computation, and the input is remembered.

    The context that mlx-lm answers with has it as `reply`.
    Mutable, by the generation thread: `tokenised` and `digest`, once the prompt is, `held`, true
    while it waits before the generator, `held_seconds`, `fetched`, once it is known what is
    restored, `_context`, `_ended`.
    """

    def __init__(self, queue: Any, failures: FailedInputs) -> None:
        self._queue = queue
        self._failures = failures
        self._context: Any = None
        self._ended = False
        self.tokenised: Tokenised | None = None
        self.digest: InputDigest | None = None
        self.held = False
        self.held_seconds = 0.0
        self.fetched: Fetched | None = None

    def put(self, item: Any) -> None:
        """Send an item to the client's thread; never blocks."""
        if isinstance(item, GenerationContext):
            self._context = item
            item.reply = self
        if isinstance(item, Exception) and self._context is not None:
            self.fail(item)
            return
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
