"""mlx-lm's ResponseGenerator with this cache: requests wait for shared blocks, are measured, and
end alone where they fail."""

import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate
from queue import Empty, Queue
from typing import Any

import mlx.core as mx
from mlx_lm import server
from mlx_lm.server import GenerationContext, Response, ResponseGenerator, TimeBudget

from omlx_cache import reasons
from omlx_cache.arrays.mlxio import allocate_payload
from omlx_cache.integrations.host_server import MLX_LM
from omlx_cache.integrations.lanes import furthest, model_name
from omlx_cache.integrations.mlx_lm.batches import ServedBatches
from omlx_cache.integrations.mlx_lm.models import (
    first_line,
    load_default,
    served_as,
)
from omlx_cache.integrations.mlx_lm.preparing import (
    CALL_TOKENS,
    TURN_TOKENS,
    Preparing,
    predicted,
)
from omlx_cache.integrations.mlx_lm.reasoning import ADVICE, KeptReasoning
from omlx_cache.integrations.mlx_lm.requests import (
    CLIENT_LEFT,
    CUT_OFF,
    FAILED,
    BadRequest,
    ClientLeft,
    NotServed,
    Refused,
    SentAnswer,
    ServedRequest,
    Unavailable,
    check_tokens,
    length_of,
    too_long,
)
from omlx_cache.integrations.mlx_lm.served_cache import ServedPromptCache
from omlx_cache.integrations.mlx_lm.tokenizer_cache import cached
from omlx_cache.integrations.rows import refuse_batches
from omlx_cache.mlx_lm_versions import as_prompt_parts, context_fields, has_images, prompt_parts
from omlx_cache.requests.log import AskedRequest
from omlx_cache.store import BlockStore
from omlx_cache_storage.keys import as_tokens
from omlx_cache_storage.page import REMOTE

_log = logging.getLogger(__name__)

PACKING = ("kv_bits", "kv_group_size", "quantized_kv_start")
AHEAD_SECONDS = 30.0
"""A request is queued by then: pages that have not come are read when its turn comes."""
LOOK_SECONDS = 1.0
"""A waiting request looks again after so long although nothing happened: a flight may stall."""
PAUSES = 10.0
"""A look takes at most 1/10 of a request's waiting, as processor time."""
ALIVE_SECONDS = 5.0
"""How often a waiting client learns that its request is alive."""
CHARACTERS = 16
"""Characters of a prompt's token, at most: tokenising a longer text takes gigabytes."""
_HURRY_SECONDS = 2.0


class Responses(ResponseGenerator):  # type: ignore[misc]
    """Answers requests with a store's pages.

    A client's thread tokenises its prompt, reads ahead, and waits while another request computes
    the next blocks; then the request is queued. `_arriving` makes one of several alike the first,
    and guards `_waiting`, a count. `coming` has the threads of clients whose request is not queued
    yet: nothing is prepared meanwhile. Each operation on it is atomic. An error on the generation
    thread ends the requests that are computed, and the thread goes on. `tokens_of` limits a prompt
    for a model. `failure` is why the default model could not be loaded, written before `loaded` is
    set; `cutting` is set once, by `stop`; `_current`, `_looked_at` are the generation thread's.
    """

    def __init__(
        self,
        provider: Any,
        store: BlockStore,
        tokens_of: Callable[[str], int],
        keep_reasoning: bool = False,
    ) -> None:
        flags = provider.cli_args
        self.reasoning = KeptReasoning(keep_reasoning, flags.chat_template_args)
        # mlx-lm before 0.32 has none of these.
        options = {name: getattr(flags, name) for name in PACKING if hasattr(flags, name)}
        self._store = store
        self._tokens_of = tokens_of
        self.cache = ServedPromptCache(store, provider, fetched=self._note_fetched, **options)
        self.loaded = threading.Event()
        self.failure: Exception | None = None
        self.cutting = False
        self._generation_failed = False
        self._arriving = threading.Lock()
        self._predicting = threading.Lock()
        self._waiting = 0
        self.coming: set[int] = set()
        self._at_work = weakref.WeakKeyDictionary[ServedRequest, None]()
        self._current: ServedRequest | None = None
        self._looked_at: Callable[[], Any] = lambda: None
        self._preparing = Preparing(store, self.cache)
        super().__init__(provider, self.cache)

    # On clients' threads.

    def generate(
        self,
        request: Any,
        generation_args: Any,
        progress_callback: Callable[[int, int], None] | None = None,
    ) -> tuple[Any, Iterator[Any]]:
        if self.cutting or not self.generation_available():
            raise Unavailable("the server is ending")
        default, asked = self.cli_args.model, generation_args.model
        if default and asked.model == model_name(default) and asked.adapter is None:
            # mlx-lm knows the name that it was given, and not the one that is shown.
            asked.model = "default_model"
        request.generation_args = generation_args
        request.served = served = ServedRequest(
            self.cache.note_end, bool(request.tools), request.has_left
        )
        try:
            answer = partial(super().generate, request, generation_args, progress_callback)
            if self._is_known(request, generation_args):
                tokenizer = self.model_provider.tokenizer
                served.parts = self._parts(tokenizer, request, generation_args)
                served.tokenizer = tokenizer
                self._read_ahead(served.parts[0])
                if super()._is_batchable(generation_args) and not self._is_first(served):
                    _stops, machine = self._made(tokenizer, generation_args)
                    early = GenerationContext(
                        has_tool_calling=tokenizer.has_tool_calling,
                        has_thinking=tokenizer.has_thinking,
                        tool_parser=tokenizer.tool_parser,
                        prompt=served.parts[0],
                        **context_fields(machine, served.parts[3]),
                    )
                    answers = self._in_turn(served, early, answer, progress_callback)
                    return early, self._measured(served, answers)
            try:
                context, answers = answer()
            except Exception as error:
                self._check_served(generation_args.model.model, error)
                if isinstance(error, ClientLeft):
                    _log.info("%s", served.line(0, None, CLIENT_LEFT, ""))
                raise
            return context, self._measured(served, answers)
        finally:
            self.coming.discard(threading.get_ident())

    def _check_served(self, name: str, error: Exception) -> None:
        """Log a request for another model, which ended in an error of no request's, and raise
        NotServed."""
        default = self.cli_args.model
        if isinstance(error, Refused) or served_as(default, name):
            return
        here = f"this server has {model_name(default)}" if default else "/v1/models lists some"
        refused = NotServed(f"the model {name!r:.99} cannot be loaded; {here}")
        _log.warning("a request failed: %s (%s)", refused, first_line(error))
        raise refused from error

    def _is_known(self, request: Any, args: Any) -> bool:
        """True for a request without images to the model that is loaded, as far as is known."""
        provider = self.model_provider
        key, asked = provider.model_key, args.model
        return (
            key is not None
            and served_as(key, asked.model)
            and asked.adapter is None
            and asked.draft in (None, "default_model")
            and not has_images(request.messages)
        )

    def _read_ahead(self, prompt: list[int]) -> None:
        """Promote a prompt's pages of other machines to free memory, while other requests are
        answered: with the thread that computes they would wait for the network. Raises nothing."""
        if self._store.remote is None or not self._unended():
            return
        try:
            lanes = self.cache.lanes_of(self.model_provider.model_key)
            uses = furthest(lanes, as_tokens(prompt), asks=True).point.uses
            far = [use for each in uses.values() for use in each if use.info.tier == REMOTE]
            pages = [use.page for use in sorted(far, key=lambda use: use.info.position)]
            if pages:
                self._store.prefetch(pages, allocate_payload).wait(AHEAD_SECONDS)
        except Exception:
            _log.debug("nothing was read ahead", exc_info=True)

    def _is_first(self, served: ServedRequest, *, last: bool = False) -> bool:
        """Return False while another request computes the blocks that this one needs next; else,
        and with `last`, note that this one computes them. Never raises: a request whose prompt
        cannot be compared is first."""
        assert served.parts is not None
        key, prompt = self.model_provider.model_key, served.parts[0]
        with self._arriving:
            try:
                awaited = None if last else self.cache.awaited(key, as_tokens(prompt))
                if awaited is not None:
                    served.waited_for = awaited.number or served.waited_for
                    return False
                *ends, _all = accumulate(map(len, served.parts[1]))
                served.flight = self.cache.flight(key, prompt, 0, ends)
            except Exception:
                _log.exception("a request does not wait for others")
        return True

    def _in_turn(
        self,
        served: ServedRequest,
        early: GenerationContext,
        answer: Callable[[], tuple[Any, Iterator[Any]]],
        progress: Callable[[int, int], None] | None,
    ) -> Iterator[Any]:
        with self._arriving:
            self._waiting += 1
            # Of many at once the first one's line is enough: each says it in its own.
            level = logging.INFO if self._waiting == 1 else logging.DEBUG
        count = len(early.prompt)
        _log.log(level, "a request of %d tokens waits for another that computes its prefix", count)
        try:
            self._wait(served, count, progress or (lambda done, total: None))
        finally:
            with self._arriving:
                self._waiting -= 1
        served.held_seconds = time.perf_counter() - served.arrived
        context, answers = answer()
        early.prompt_cache_count = context.prompt_cache_count
        yield from answers

    def _wait(
        self, served: ServedRequest, count: int, progress: Callable[[int, int], None]
    ) -> None:
        """Block until no other request computes what this one needs next; tells its client that it
        is alive. Raises Unavailable when the server ends, ClientLeft when the client has left."""
        flights, told = self._store.flights, 0.0
        until = time.monotonic() + flights.wait_seconds
        while True:
            seen, began = flights.changes, time.monotonic()
            worked = time.thread_time()
            # Looked at first: the other request may have ended because the server does.
            if self.cutting:
                raise Unavailable("the server is ending")
            if served.has_left():
                raise ClientLeft
            if self._is_first(served, last=began >= until):
                return
            if began - told >= ALIVE_SECONDS:
                told = began
                progress(0, count)
            # Not by the clock: that grows with all who look, and with what else the machine does.
            time.sleep(PAUSES * (time.thread_time() - worked))
            with flights.lock:
                if flights.changes == seen:
                    flights.on_change.wait(LOOK_SECONDS)

    def _measured(self, served: ServedRequest, answers: Iterator[Any]) -> Iterator[Any]:
        """Yield a request's answers, and log it when its last token is out or its client gone."""
        first: float | None = None
        count, early = 0, FAILED
        try:
            for answer in answers:
                if first is None:
                    first = time.perf_counter() - served.arrived
                    if served.asked is not None:
                        served.asked.spoke(first)
                count += 1
                if answer.finish_reason is not None:
                    early = ""
                yield answer
            early = ""
        except Unavailable:
            early = CUT_OFF
            raise
        except (GeneratorExit, ConnectionError, TimeoutError):
            early = CLIENT_LEFT if early else ""
            raise
        finally:
            served.land()
            notes = ""
            if served.asked is not None:
                served.asked.ended(count)
                notes = self.cache.room_for(served.asked.record.prompt_tokens + count)
            _log.info("%s", served.line(count, first, early, notes))

    def expect(self, request: Any, answer: SentAnswer) -> None:
        """Note how the next prompt of an answered conversation begins, if it is likely to come and
        no request is there. Raises nothing."""
        if self._is_busy or not self._predicting.acquire(blocking=False):
            return
        try:
            messages, preparing = request.messages, self._preparing
            deletions = self._store.deletions
            goes_on = request.tools or any(m.get("role") == "assistant" for m in messages)
            is_whole = answer.finish_reason in ("stop", "tool_calls")
            if not (messages and goes_on and is_whole and preparing.is_worth_it) or self.cutting:
                return
            args, provider = request.generation_args, self.model_provider
            is_ours = self._is_known(request, args) and self.prompt_cache is self.cache
            if not (is_ours and self.cache.prepares(provider.model_key)):
                return
            if "chat_template" in (args.chat_template_kwargs or {}):
                # A client's own may take any time.
                return
            key, tokenizer = provider.model_key, provider.tokenizer
            special = frozenset(tokenizer.added_tokens_decoder)

            def render(messages: list[Any]) -> list[int]:
                if self._is_busy:
                    raise Unavailable("a request has arrived")
                return list(self._parts(tokenizer, replace(request, messages=messages), args)[0])

            tokens = predicted(render, messages, answer.message, special.__contains__)
            if tokens:
                most = CALL_TOKENS if answer.finish_reason == "tool_calls" else TURN_TOKENS
                preparing.expect(key, tokens, most, request.served.parts[0], deletions)
        except Exception:
            _log.debug("the next prompt is not expected", exc_info=True)
        finally:
            self._predicting.release()

    @property
    def _is_busy(self) -> bool:
        """True while a request is there, or the server ends."""
        return bool(self.coming or self._unended()) or not self.requests.empty() or self.cutting

    def _unended(self) -> list[ServedRequest]:
        """Return the requests that are computed. Any thread may ask: the list of weak references is
        made in one step."""
        refs = self._at_work.keyrefs()
        return [served for ref in refs if (served := ref()) and not served.is_over]

    def stop(self, seconds: float, hurry: threading.Event) -> bool:
        """End the running requests, and the thread; False when that takes longer than `seconds`, or
        than a moment after `hurry`."""
        self.cutting = self._stop = True
        deadline = time.monotonic() + seconds
        while self._generation_thread.is_alive() and (left := deadline - time.monotonic()) > 0:
            self._generation_thread.join(min(left, 0.1))
            if hurry.is_set():
                deadline = min(deadline, time.monotonic() + _HURRY_SECONDS)
                hurry = threading.Event()
        ended = Unavailable("the server is ending")
        for served in self._unended():
            served.fail(ended)
        with suppress(Empty):
            while True:
                self.requests.get_nowait()[0].put(ended)
        return not self._generation_thread.is_alive()

    def generation_available(self) -> bool:
        return self._generation_thread.is_alive() and not self._generation_failed

    def tokens_of(self, request: Any, args: Any) -> list[int]:
        """Return a prompt's tokens; raises Refused. Any thread may ask."""
        return list(self._parts(self.model_provider.tokenizer, request, args)[0])

    def check_tokenizer(self) -> None:
        """Compare a prompt's tokens with the tokenizer's, when one is due, in idle time."""
        tokenizer = self.model_provider.tokenizer
        if tokenizer is not None and not self._is_busy and not cached(tokenizer).check():
            self._store.counters.add(tokenizer_differences=1)

    # On either.

    def _parts(self, tokenizer: Any, request: Any, args: Any) -> tuple[Any, ...]:
        """Return a prompt, tokenised; raises BadRequest."""
        most = self._tokens_of(self.model_provider.model_key[0])
        if length_of(request) > CHARACTERS * most:
            raise too_long(f"more than {most}", most)
        prompt = request.prompt
        try:
            if isinstance(prompt, list):
                check_tokens(prompt, tokenizer)
                parts: tuple[Any, ...] = (prompt, [prompt], ["assistant"], "normal", None)
            else:
                render = partial(super()._tokenize, cached(tokenizer), request, args)
                parts = prompt_parts(self.reasoning.rendered(request, args, tokenizer, render))
        except Exception as error:
            raise BadRequest(f"this prompt cannot be tokenised: {error}") from error
        if len(parts[0]) > most:
            raise too_long(str(len(parts[0])), most)
        if not parts[0]:
            raise BadRequest("the prompt has no tokens")
        return parts

    def _made(self, tokenizer: Any, args: Any) -> Any:
        """Return mlx-lm's state machine for a request's options; raises BadRequest for any of them
        whose error would end mlx-lm's thread."""
        try:
            check_tokens(args.logits.logit_bias or (), tokenizer)
            server._make_sampler(args, tokenizer)
            server._make_logits_processors(args)
            return self._make_state_machine(
                self.model_provider.model_key, tokenizer, args.stop_words
            )
        except Exception as error:
            raise BadRequest(f"these options cannot be used: {error}") from error

    # On the generation thread.

    def _generate(self) -> None:
        try:
            provider = self.model_provider
            load_default(provider)
            self._look_at_model()
            require = self._store.settings.require
            if provider.model is not None and not MLX_LM.takes(
                provider, (), lambda: provider.model, require=require
            ):
                self.prompt_cache = server.LRUPromptCache(self.cli_args.prompt_cache_size)
            elif provider.model is not None:
                # So that the first request does not wait for work that is done once for each model.
                self.cache.fresh(provider.model_key)
        except Exception as error:
            self.failure = error
            return
        finally:
            self.loaded.set()
        self._time_budget = _Budget(self.requests)
        if self.prompt_cache is self.cache:
            # mlx-lm's loop makes its batches itself.
            server.BatchGenerator = partial(ServedBatches, self.cache, lambda: self._current)
        while not self._generated():
            gc.collect()
            mx.clear_cache()
        self._preparing.give_up()

    def _generated(self) -> bool:
        """Compute until the server stops; False after an error that ended the requests only."""
        try:
            super()._generate()
        except Exception as error:
            _log.exception("generation failed")
            at_work = self._unended()
            for served in at_work:
                served.fail(error)
            self._generation_failed = self.cutting or not at_work
            return self._generation_failed
        return True

    def _next_request(self, timeout: float | None = None) -> Any:
        """Take the next request; when mlx-lm would wait for one, prepare what comes next."""
        prepares = timeout is not None and self._preparing.ready and not self.coming
        found = super()._next_request(None if prepares else timeout)
        if found is None:
            if prepares:
                self._preparing.step(self.model_provider.model_key, self.model_provider.model)
            return None
        queue, request, args = found
        if request.served.has_left():
            queue.put(ClientLeft())
            return None
        parts = request.served.parts
        self._preparing.give_up(() if parts is None else parts[0])
        request.served.queue = queue
        self._at_work[request.served] = None
        return request.served, request, args

    def _tokenize(self, tokenizer: Any, request: Any, args: Any) -> tuple[Any, ...]:
        self._current = served = request.served
        if served.tokenizer is not tokenizer:
            served.parts, served.tokenizer = self._parts(tokenizer, request, args), tokenizer
        served.lacks_reasoning = getattr(request, "lacks_reasoning", False)
        self._made(tokenizer, args)
        parts = served.parts
        # mlx-lm cuts the restored tokens off the segments.
        return as_prompt_parts((parts[0], list(map(list, parts[1])), list(parts[2]), *parts[3:]))

    def _is_batchable(self, args: Any) -> bool:
        self._look_at_model()
        return bool(super()._is_batchable(args))

    def _look_at_model(self) -> None:
        """Have a model whose states take padding for tokens served one request at a time."""
        provider = self.model_provider
        if provider.model is not None and self._looked_at() is not provider.model:
            self._looked_at = weakref.ref(provider.model)
            refuse_batches(provider)

    def _log_cache_stats(self) -> None:
        """mlx-lm counts the sequences of its own cache here, at each request."""

    def _note_fetched(self, asked: AskedRequest) -> None:
        if self._current is not None:
            self._current.asked = asked
            asked.arrived(self._current.arrived)
            if self._current.held_seconds:
                asked.waited(self._current.held_seconds, self._current.waited_for)
            if self._current.flight is not None:
                self._current.flight.number = asked.record.number
            if self._current.lacks_reasoning:
                asked.explain(reasons.REWRITTEN, ADVICE)
        asked.begin_chunk(asked.record.restored_tokens)

    def _serve_single(self, request: Any, *stream: Any) -> None:
        request[0].alone = partial(self._computed_alone, request[0])
        with self.cache.lending():
            super()._serve_single(request, *stream)

    def _computed_alone(self, served: ServedRequest, item: Any) -> None:
        """Measure and store what was computed before an item: progress, a token, or the end. Raises
        Unavailable for a request that is cut off: mlx-lm would go on."""
        if self.cutting and item is not None:
            raise Unavailable("the server is ending")
        asked = served.asked
        if asked is None:
            return
        if isinstance(item, tuple):
            start = asked.record.restored_tokens
            asked.end_chunk(start + item[0])
            self.cache.prefilled(item[0])
            asked.begin_chunk(start + item[0])
        elif isinstance(item, Response):
            asked.end_chunk()


class _Budget(TimeBudget):  # type: ignore[misc]
    """How long mlx-lm computes before it looks for requests: one step when one is there."""

    def __init__(self, requests: "Queue[Any]") -> None:
        super().__init__()
        self._requests = requests

    def __iter__(self) -> Iterator[None]:
        super().__iter__()
        with suppress(StopIteration):
            while True:
                yield super().__next__()
                if not self._requests.empty():
                    return
