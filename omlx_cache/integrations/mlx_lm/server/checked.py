"""mlx-lm's ResponseGenerator, kept from requests that would end its thread."""

import gc
import logging
import threading
import time
from collections.abc import Callable
from queue import Empty
from typing import Any
from weakref import WeakSet

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.server import ResponseGenerator

from omlx_cache.integrations.mlx_lm.server.failures import FailedInputs, digest_of
from omlx_cache.integrations.mlx_lm.server.lengths import (
    check_characters,
    check_length,
    looks_long,
    text_of,
)
from omlx_cache.integrations.mlx_lm.server.limits import Limits
from omlx_cache.integrations.mlx_lm.server.refusals import BadRequest, Unavailable
from omlx_cache.integrations.mlx_lm.server.replies import Reply, Tokenised
from omlx_cache.integrations.mlx_lm.server.requests import check_sampling, check_tokens
from omlx_cache.mlx_lm_versions import as_prompt_parts, prompt_parts

_log = logging.getLogger(__name__)

_HURRY_SECONDS = 2.0


class CheckedResponseGenerator(ResponseGenerator):  # type: ignore[misc]
    """Refuses what the model that was asked for cannot take: Refused from `generate`.

    Tokenising is the first thing that its thread does with a request. An error after that ends the
    requests that are computed, and the thread goes on; with several ranks, which would lose step,
    it ends. `_vocabulary`, `_failures` and `asked`, the reply to the request that was tokenised
    last, belong to that thread; `cutting` is set once, by `stop`.
    """

    def __init__(self, provider: Any, cache: Any, limits: Limits) -> None:
        self._limits = limits
        self._vocabulary: tuple[Any, int] = (None, 0)
        self._failures = FailedInputs()
        self._replies: WeakSet[Reply] = WeakSet()
        self.asked: Reply | None = None
        self.cutting = False
        self._generation_failed = False
        super().__init__(provider, cache)

    def generate(
        self,
        request: Any,
        generation_args: Any,
        progress_callback: Callable[[int, int], None] | None = None,
    ) -> Any:
        if self.cutting or not self.generation_available():
            raise Unavailable("the server is ending")
        request.arrived = time.perf_counter()
        if self._replies:
            self.arriving(request, generation_args)
        return super().generate(request, generation_args, progress_callback)

    def arriving(self, request: Any, generation_args: Any) -> None:
        """Called on the asking thread for a request that arrives while others are answered, before
        it is queued. Does nothing here."""

    def stop(self, seconds: float, hurry: threading.Event | None = None) -> bool:
        """End what is computed, and the thread; False when that takes longer than `seconds`, or
        than a moment after `hurry` is set."""
        self.cutting = True
        self._stop = True
        deadline = time.monotonic() + seconds
        while self._generation_thread.is_alive() and (left := deadline - time.monotonic()) > 0:
            if hurry is not None and hurry.is_set():
                deadline = min(deadline, time.monotonic() + _HURRY_SECONDS)
                hurry = None
            self._generation_thread.join(min(left, 0.1))
        ended = Unavailable("the server is ending")
        for reply in list(self._replies):
            reply.put(ended)
        while True:
            try:
                self.requests.get_nowait()[0].put(ended)
            except Empty:
                return not self._generation_thread.is_alive()

    def generation_available(self) -> bool:
        """True while the thread that computes is alive, and has not given up."""
        return self._generation_thread.is_alive() and not self._generation_failed

    @property
    def is_healthy(self) -> bool:
        return self.generation_available()

    def _generate(self) -> None:
        """Where the thread begins before mlx-lm 0.32; later ones begin with the next."""
        self._run_generate()

    def _compute(self) -> None:
        """Compute until the server stops; an error ends it."""
        super()._generate()

    def _run_generate(self) -> None:
        while True:
            try:
                self._compute()
                return
            except Exception as error:
                _log.exception("generation failed")
                under_way = [reply for reply in self._replies if not reply.held]
                self._generation_failed = self._is_distributed or not under_way or self.cutting
                for reply in under_way:
                    reply.put(error)
                self._replies.difference_update(under_way)
            if self._generation_failed:
                return
            gc.collect()
            mx.clear_cache()

    def _log_cache_stats(self) -> None:
        """mlx-lm counts the sequences of its own cache here, at each request."""

    def _next_request(self, timeout: float | None = None) -> Any:
        found = super()._next_request(timeout)
        if found is None:
            return None
        queue, request, args = found
        tools = bool(getattr(request, "tools", None))
        request.reply = reply = Reply(queue, self._failures, request.arrived, offered_tools=tools)
        self._replies.add(reply)
        return reply, request, args

    def _tokenize(self, tokenizer: Any, request: Any, args: Any) -> tuple[Any, ...]:
        self.asked = request.reply
        parts = self._tokenised(tokenizer, request, args)
        self._failures.check(request.reply.digest)
        return as_prompt_parts(parts)

    def _tokenised(self, tokenizer: Any, request: Any, args: Any) -> tuple[Any, ...]:
        """Return the parts of a request's prompt, tokenised once; raises BadRequest."""
        reply = request.reply
        if reply.tokenised is None or reply.tokenised.tokenizer is not tokenizer:
            try:
                parts = self._accepted(tokenizer, request, args)
            except BadRequest as error:
                reply.tokenised = Tokenised(tokenizer, error)
            else:
                reply.tokenised = Tokenised(tokenizer, parts)
        if isinstance(reply.tokenised.parts, BadRequest):
            raise reply.tokenised.parts
        return tuple(reply.tokenised.parts)

    def _accepted(self, tokenizer: Any, request: Any, args: Any) -> tuple[Any, ...]:
        most = self._limits.tokens_of(self.model_provider.model_key[0])
        try:
            if not isinstance(request.prompt, list) and looks_long(request, most):
                check_characters(text_of(request, args, self.model_provider), most, tokenizer)
            parts = self._parts(tokenizer, request, args)
            # It is kept, so that building it again, where an error is fatal, succeeds.
            self._make_state_machine(self.model_provider.model_key, tokenizer, args.stop_words)
        except BadRequest:
            raise
        except Exception as error:
            raise BadRequest(f"this prompt cannot be tokenised: {error}") from error
        vocabulary = self._vocabulary_size()
        check_tokens(parts[0], vocabulary)
        check_length(len(parts[0]), most)
        check_sampling(args.logits.logit_bias, args.sampling.top_k, vocabulary)
        vision = parts[4]
        tokens = parts[0] if vision is None else vision.cache_key
        request.reply.digest = digest_of(self.model_provider.model_key, tokens)
        return parts

    def _parts(self, tokenizer: Any, request: Any, args: Any) -> tuple[Any, ...]:
        if isinstance(request.prompt, list):
            tokens = list(request.prompt)
            return tokens, [tokens], ["assistant"], "normal", None
        return prompt_parts(super()._tokenize(tokenizer, request, args))

    def tokens_of(self, request: Any, args: Any) -> list[int]:
        """Return a prompt's tokens, outside the queue; raises BadRequest for too many. Any thread
        may ask: it changes nothing here."""
        provider = self.model_provider
        most = self._limits.tokens_of(provider.model_key[0])
        if not isinstance(request.prompt, list) and looks_long(request, most):
            check_characters(text_of(request, args, provider), most, provider.tokenizer)
        if isinstance(request.prompt, list):
            tokens = list(request.prompt)
        else:
            parts = super()._tokenize(provider.tokenizer, request, args)
            tokens = list(prompt_parts(parts)[0])
        check_length(len(tokens), most)
        return tokens

    def _vocabulary_size(self) -> int:
        """Return how many tokens the models that are loaded have in common; evaluates nothing."""
        provider = self.model_provider
        if self._vocabulary[0] != provider.model_key:
            models = [m for m in (provider.model, provider.draft_model) if m is not None]
            self._vocabulary = (provider.model_key, min(map(_logits, models)))
        return self._vocabulary[1]


def _logits(model: Any) -> int:
    """Return how many logits a model gives: what its graph says, which is never run."""
    return int(model(mx.array([[0]]), cache=make_prompt_cache(model)).shape[-1])
