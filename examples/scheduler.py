"""A reference scheduler: what the author of a model server would copy, and nothing else.

One thread owns the model (`run`); any may call `submit` and `cancel`. A request goes through: its
cached prefix -> chunked prefill with checkpoints -> batched decoding -> commit: docs/embedding.md.
"""

import contextlib
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator

from omlx_cache import Begun, PrefixCache, Preparation, Session

PREFILL_STEP = 512


@dataclass
class Request:
    """A prompt and its answer. `tokens` ends with None; `done` is set when nothing more comes, and
    `error` then says what ended it early."""

    prompt: list[int]
    max_tokens: int = 64
    salt: str | None = None
    ended: Callable[[list[int]], str | None] = lambda answer: None  # "tool_call", "turn": a hint
    tokens: "queue.Queue[int | None]" = field(default_factory=queue.Queue)
    done: threading.Event = field(default_factory=threading.Event)
    cancelled: threading.Event = field(default_factory=threading.Event)
    cached_tokens: int = 0
    error: BaseException | None = None
    begun: Begun = field(init=False, repr=False)

    def answer(self) -> list[int]:
        """Block until the answer is complete, and return it; raises `error`."""
        answer = list(iter(self.tokens.get, None))
        if self.error is not None:
            raise self.error
        return answer


@dataclass
class Prefill:
    """A request that is being prefilled, alone, a chunk at a time."""

    request: Request
    session: Session
    position: int


class Scheduler:
    """Prefills one request at a time, a chunk between two decoding steps, and decodes in a batch.

    Mutable by the thread in `run` only: `_waiting`, `_prefill`, `_decoding`, `_batch`, `_idle`.
    """

    def __init__(self, model: Any, cache: PrefixCache, *, eos: Sequence[int] = ()) -> None:
        self._model = model
        self._cache = cache
        self._eos = [[token] for token in eos]
        self._arrivals: queue.Queue[Request | Preparation | None] = queue.Queue()
        self._waiting: deque[Request] = deque()
        self._idle: deque[Preparation] = deque(maxlen=16)
        self._prefill: Prefill | None = None
        self._decoding: dict[int, tuple[Request, Session]] = {}
        self._batch: BatchGenerator | None = None
        self._is_over = threading.Event()

    def submit(self, request: Request) -> Request:
        """Queue a request and begin to read what is cached of it; returns at once. Raises
        ValueError for a prompt that the model cannot be fed."""
        prompt, most = request.prompt, request.max_tokens
        if not isinstance(prompt, list) or not all(
            type(token) is int and 0 <= token < 2**31 for token in prompt
        ):
            raise ValueError(f"a prompt is a list of token ids, got {type(prompt).__name__}")
        if not prompt or type(most) is not int or most < 1:
            raise ValueError(
                "a request has a token or more, and max_tokens of at least 1; got "
                f"{len(prompt)} tokens and max_tokens={most!r}"
            )
        # Buffers get room for the prompt only, as the batch copies them.
        request.begun = self._cache.begin(request.prompt, salt=request.salt, max_new_tokens=0)
        self._arrivals.put(request)
        if self._is_over.is_set():
            self._fail_arrivals(RuntimeError("the scheduler has ended"))
        return request

    def prepare(self, tokens: Sequence[int], salt: str | None = None) -> None:
        """Have a prompt's beginning computed while there is nothing else to do."""
        self._arrivals.put(self._cache.prepare(tokens, salt=salt))

    def cancel(self, request: Request) -> None:
        """Ask for a request to be dropped at the next step; safe from any thread."""
        request.cancelled.set()

    def stop(self) -> None:
        """Let `run` return when the requests that it has are done."""
        self._arrivals.put(None)

    def run(self) -> None:
        """Serve until `stop`; on the thread that may touch the model."""
        self._batch = BatchGenerator(self._model, stop_tokens=self._eos or None)
        open_for_business = True
        try:
            while open_for_business or self._busy():
                open_for_business = self._receive() and open_for_business
                self._prepare_a_chunk()
                self._drop_cancelled()
                self._prefill_a_chunk()
                self._decode_a_step()
        finally:
            # Whatever ended the loop, nothing may keep what it captured, and no client may wait.
            self._is_over.set()
            error = sys.exception() or RuntimeError("the scheduler has ended")
            for preparation in self._idle:
                preparation.close()
            if self._prefill is not None:
                self._fail(self._prefill.request, error, self._prefill.session)
            for request, session in self._decoding.values():
                self._fail(request, error, session)
            for request in self._waiting:
                self._fail(request, error)
            self._fail_arrivals(error)
            self._batch.close()

    def _busy(self) -> bool:
        return bool(self._waiting or self._prefill or self._decoding)

    def _receive(self) -> bool:
        """Take what has arrived, waiting when there is nothing else to do; False after `stop`."""
        more = True
        try:
            while more:
                # A preparation whose pages are still read has nothing to do either.
                is_free = not (self._busy() or (self._idle and self._idle[0].ready))
                arrival = self._arrivals.get(is_free, 0.01 if self._idle else None)
                more = arrival is not None
                if isinstance(arrival, Preparation):
                    self._idle.append(arrival)
                elif arrival is not None:
                    self._waiting.append(arrival)
        except queue.Empty:
            pass
        return more

    def _prepare_a_chunk(self) -> None:
        """Compute a chunk of what will be asked for; a request gives it up, and can restore it."""
        if self._idle and (self._busy() or not self._idle[0].step(self._model)):
            self._idle.popleft().close()

    def _next_ready(self) -> Request | None:
        """Return the first request whose prefix has come, or was waited for long enough.

        With nothing to decode meanwhile, the first of all is waited for.
        """
        for request in self._waiting:
            begun = request.begun
            # What another request computes is left to that one.
            if begun.ready or not (begun.held or (begun.deadline and self._decoding)):
                return request
        if self._waiting and not self._decoding:
            self._waiting[0].begun.wait(0.05)
        return None

    def _prefill_a_chunk(self) -> None:
        request = None if self._prefill is not None else self._next_ready()
        if request is not None:
            session = self._cache.session(
                request.prompt, salt=request.salt, max_new_tokens=0, begun=request.begun
            )
            request.cached_tokens = session.cached_tokens
            self._prefill = Prefill(request, session, session.cached_tokens)
            self._waiting.remove(request)
        job = self._prefill
        if job is None:
            return
        try:
            self._feed(job)
        except Exception as error:
            # The others go on.
            self._prefill = None
            self._fail(job.request, error, job.session)

    def _feed(self, job: Prefill) -> None:
        # The generator wants the last token for itself.
        left = len(job.request.prompt) - 1 - job.position
        if left > 0:
            count = min(job.session.next_stop(PREFILL_STEP), left)
            chunk = job.request.prompt[job.position : job.position + count]
            self._model(mx.array([chunk]), cache=job.session.prompt_cache)
            job.session.evaluate()
            job.position += count
            job.session.checkpoint(job.position)
        if job.position >= len(job.request.prompt) - 1:
            self._start_decoding(job)
            self._prefill = None

    def _start_decoding(self, job: Prefill) -> None:
        assert self._batch is not None
        prompt = job.request.prompt
        (uid,) = self._batch.insert_segments(
            segments=[[prompt[-1:]]],
            max_tokens=[job.request.max_tokens],
            caches=[job.session.take_cache()],
            all_tokens=[prompt[:-1]],
        )
        self._decoding[uid] = (job.request, job.session)

    def _decode_a_step(self) -> None:
        assert self._batch is not None
        if not self._decoding:
            return
        _prompts, responses = self._batch.next()
        for response in responses:
            request, session = self._decoding[response.uid]
            request.tokens.put(response.token)
            if response.finish_reason is not None:
                del self._decoding[response.uid]
                try:
                    session.extend(answer := response.all_tokens[len(request.prompt) :])
                    hint = request.ended(answer)
                    session.commit(response.prompt_cache, release=True, ended=hint)
                except Exception as error:
                    self._fail(request, error, session)
                else:
                    self._finish(request)

    def _drop_cancelled(self) -> None:
        assert self._batch is not None
        for request in [r for r in self._waiting if r.cancelled.is_set()]:
            self._waiting.remove(request)
            request.begun.cancel()
            self._finish(request)
        if self._prefill is not None and self._prefill.request.cancelled.is_set():
            # Whole blocks that were prefilled are worth keeping: the client may ask again.
            self._prefill.session.commit(ended="cancelled")
            self._finish(self._prefill.request)
            self._prefill = None
        for uid, (request, session) in list(self._decoding.items()):
            if request.cancelled.is_set():
                self._batch.remove([uid])
                session.abort()
                del self._decoding[uid]
                self._finish(request)

    def _fail_arrivals(self, error: BaseException) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                arrival = self._arrivals.get_nowait()
                if isinstance(arrival, Request):
                    self._fail(arrival, error)

    def _fail(self, request: Request, error: BaseException, session: Session | None = None) -> None:
        request.begun.cancel()
        if session is not None:
            session.abort()
        request.error = error
        self._finish(request)

    def _finish(self, request: Request) -> None:
        request.done.set()
        request.tokens.put(None)
