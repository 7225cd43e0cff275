"""The latest requests of a store, bounded: what `log`, `why` and a server's log line read; and what
was computed before anybody asked for it, and how much of that was asked for since.
"""

import logging
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial

from omlx_cache import reasons
from omlx_cache.control.replies import ExplainedRequest, RecordPage, Remembered, WhyReply
from omlx_cache.control.serialization import extended
from omlx_cache.identity.namespace import Namespace
from omlx_cache.requests.explainer import Explainer, Walked, compact
from omlx_cache.requests.explanation import Explanation, RequestRecord, sentence, why
from omlx_cache.requests.trace import RequestTrace
from omlx_cache_storage.calls import turn, uninterrupted, wait_in_turns
from omlx_cache_storage.events import SILENT, EventLog
from omlx_cache_storage.keys import BlockKey, KeyChain, Tokens, shared_length
from omlx_cache_storage.measures import Counters, RequestWork

_log = logging.getLogger(__name__)

REMEMBERED = 512
PREPARED = 64
PREPARED_TOKENS = 1 << 22
"""Of all sequences together: 16 MiB."""
PROGRESS_SECONDS = 10.0
"""How often a prompt that takes long is said to go on."""
FOLLOWED_SECONDS = 1.0
"""A reader that asked for records so lately is expected to ask again, and is waited for so long."""


@dataclass(eq=False, slots=True)
class _Prepared:
    """Tokens of which those from `start` on were prepared; what is asked for moves that."""

    namespace: BlockKey
    tokens: Tokens
    start: int
    asked: bool = False


class PreparedSequences:
    """The sequences that were prepared last, bounded. Any thread may call. `_lock` guards `_latest`
    and what is in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: deque[_Prepared] = deque(maxlen=PREPARED)

    def add(self, chain: KeyChain, start: int, end: int) -> None:
        """Note that the tokens from `start` to `end` were prepared; one that goes on after an
        interruption is one sequence."""
        tokens = compact(chain.tokens[:end])
        with self._lock:
            for one in [*self._latest]:
                is_begun = one.namespace == chain.namespace and not one.asked
                if is_begun and start <= len(one.tokens) == shared_length(one.tokens, tokens):
                    self._latest.remove(one)
                    start = min(start, one.start)
            self._latest.append(_Prepared(chain.namespace, tokens, start))
            while sum(len(one.tokens) for one in self._latest) > PREPARED_TOKENS:
                self._latest.popleft()

    def ask(self, chain: KeyChain, restored: int) -> int:
        """Note what was restored of a prompt; return the prepared tokens that were restored
        first."""
        first = 0
        with self._lock:
            for one in self._latest:
                if one.namespace == chain.namespace and one.start < restored:
                    stop = shared_length(one.tokens, chain.tokens[:restored])
                    if stop > one.start:
                        first, one.start, one.asked = first + stop - one.start, stop, True
        return first

    def unasked(self, last: int) -> bool:
        """True when nothing was asked for of the `last` ones, and there were so many."""
        with self._lock:
            latest = list(self._latest)[-last:]
        return len(latest) == last and not any(one.asked for one in latest)

    def forget(self, namespace: BlockKey) -> None:
        with self._lock:
            left = [one for one in self._latest if one.namespace != namespace]
            self._latest = deque(left, PREPARED)


class AskedRequest:
    """One request, noted while it goes on; any thread may call, and no method raises.

    The log's lock guards `record`, and `explanation` (None before `restored`), which are replaced.
    The thread that looks up sets two fields before `restored`: `walked`, the keys along which the
    prompt was looked up, and `remote_tokens`; before `ended`, for the trace, `how_ended`. `chain`,
    `_began`, `_told` (when its progress was logged) and `_fed`, where a chunk began and when, are
    its own.
    """

    def __init__(self, log: "RequestLog", record: RequestRecord, work: RequestWork) -> None:
        self._log = log
        self._work = work
        self._began = self._told = time.perf_counter()
        self.record = record
        self.walked: Walked | None = None
        self.remote_tokens = 0
        self.chain: KeyChain | None = None
        self.how_ended = ""
        self._fed: tuple[int, float] | None = None
        self.explanation: Explanation | None = None

    @uninterrupted
    def arrived(self, began: float) -> None:
        """Say that it was there before it was noted: at `began`, by `time.perf_counter`."""
        earlier = max(0.0, self._began - began)
        self._began -= earlier
        self._note(asked_at=self.record.asked_at - earlier)

    @uninterrupted
    def restored(self, tokens: int, cold: int, seconds: float, reason: str | None) -> None:
        walked, self.walked = self.walked, None
        if self._log.trace is not None and walked is not None:
            self.chain = walked.chain
        record = self.record
        prepared = 0 if walked is None else self._log.prepared.ask(walked.chain, tokens)
        told = self._log.explainer.explain(
            walked, record.prompt_tokens, tokens, reason, record.number
        )
        if told.reason == reasons.NOT_STORED and not told.detail:
            told = replace(told, detail=self._log.state(told.other))
        with self._log.lock:
            self.explanation = told
        self._note(
            restored_tokens=tokens,
            cold_tokens=cold,
            remote_tokens=self.remote_tokens,
            restore_seconds=seconds,
            reason=told.reason,
            prepared_tokens=prepared,
        )
        self._log.counters.add(
            miss=told.reason if told.is_miss else None,
            sessions=1,
            asked_tokens=record.prompt_tokens,
            restored_tokens=tokens,
            restored_hot_tokens=tokens - cold - self.remote_tokens,
            restored_cold_tokens=cold,
            restored_remote_tokens=self.remote_tokens,
            prepared_asked_tokens=prepared,
        )
        timings = self._log.events.timings
        timings.observe("asked_tokens", record.prompt_tokens)
        timings.observe("restored_tokens", tokens)
        timings.observe("restore_seconds", seconds)
        self._log.events.note_request(
            record.namespace, record.prompt_tokens, tokens, cold, self.remote_tokens
        )
        self._work.restored(tokens, seconds)

    @uninterrupted
    def explain(self, reason: str, detail: str) -> None:
        with self._log.lock:
            if self.explanation is not None and self.explanation.reason == reason:
                self.explanation = replace(self.explanation, detail=detail)

    @uninterrupted
    def computed(self, tokens: int, seconds: float) -> None:
        """Note tokens of the prompt that were computed in the last `seconds`; 0 seconds for one
        that a step of decoding took along."""
        record = self.record
        done, now = record.computed_tokens + tokens, time.perf_counter()
        self._note(computed_tokens=done, compute_seconds=record.compute_seconds + seconds)
        if done + record.restored_tokens >= record.prompt_tokens:
            # The client's time counts, where it came before.
            self._note(first_token_seconds=record.first_token_seconds or now - self._began)
        elif now - self._told >= PROGRESS_SECONDS:
            self._told = now
            rest = record.prompt_tokens - record.restored_tokens
            _log.info("request %d: %d of %d tokens computed so far", record.number, done, rest)
        self._log.counters.add(prefilled_tokens=tokens)
        self._work.computed(tokens, seconds)

    @uninterrupted
    def spoke(self, seconds: float) -> None:
        """Note that its client got the first token after so many seconds. In a batch parts of other
        prompts may be computed between the end of its prompt and that."""
        self._note(first_token_seconds=seconds)

    def begin_chunk(self, position: int) -> None:
        self._fed = position, time.perf_counter()

    def end_chunk(self, position: int = sys.maxsize) -> None:
        """Say that the tokens before `position`, or all of them, have been computed; counts them if
        a chunk began. The last token of a prompt, alone, is a step of decoding and takes no time of
        its own."""
        if self._fed is None:
            return
        (start, began), self._fed = self._fed, None
        length = self.record.prompt_tokens
        if (stop := min(position, length)) > start:
            self.computed(stop - start, 0.0 if start == length - 1 else time.perf_counter() - began)

    @uninterrupted
    def waited(self, seconds: float, number: int | None) -> None:
        self._note(held_seconds=self.record.held_seconds + seconds, waited_for=number)
        self._work.held(seconds)
        self._log.events.timings.observe("held_seconds", seconds)

    @uninterrupted
    def ended(self, generated: int) -> None:
        if self.record.total_seconds is None:
            self._note(generated_tokens=generated, total_seconds=time.perf_counter() - self._began)
            with self._log.lock:
                self._log.untold = True
            record = self.record
            if record.computed_tokens:
                self._log.events.timings.observe("prefill_seconds", record.compute_seconds)
            chain, self.chain = self.chain, None
            if self._log.trace is not None and chain is not None:
                # With the blocks that its sequence has by now.
                self._log.trace.add(
                    record.asked_at, chain, record.prompt_tokens, generated, self.how_ended
                )

    def _note(self, **values: float | str | None) -> None:
        with self._log.lock:
            if self.record.total_seconds is None:
                self.record = replace(self.record, **values)  # type: ignore[arg-type]


class RequestLog:
    """Remembers the latest 512 requests. Any thread may call. `lock`, held over no I/O, guards
    `_latest`, `_count`, the records, `_followed` (when a reader last asked for a page) and `untold`
    (a request has ended since the last page without news)."""

    def __init__(
        self,
        counters: Counters,
        explainer: Explainer,
        most: int = REMEMBERED,
        trace: RequestTrace | None = None,
        events: EventLog = SILENT,
    ) -> None:
        self.counters = counters
        self.events = events
        self.explainer = explainer
        self.trace = trace
        self.prepared = PreparedSequences()
        self.lock = threading.Lock()
        self._asked = threading.Condition(self.lock)
        self._followed = -math.inf
        self.untold = False
        self._latest: deque[AskedRequest] = deque(maxlen=most)
        self._count = 0

    @uninterrupted
    def ask(self, namespace: Namespace, tokens: int) -> AskedRequest:
        label = str(namespace.document.get("label", ""))
        work = self.counters.work.request(namespace.computed_by, label)
        with self.lock:
            self._count += 1
            record = RequestRecord(
                number=self._count,
                asked_at=time.time(),
                namespace=namespace.digest.hex(),
                model=label,
                salt=str(namespace.document.get("salt", "")),
                prompt_tokens=tokens,
            )
            asked = AskedRequest(self, record, work)
            self._latest.append(asked)
        return asked

    def page(self, after: int, open_numbers: Collection[int], limit: int) -> RecordPage:
        """Return `limit` of the records beyond `after`, oldest first, and of the older ones those
        with these numbers: a reader that asks so again and again sees each request end, or that it
        was forgotten. A negative `after` returns the requests in flight."""
        with self.lock:
            known = [asked.record for asked in self._latest]
            shown = [r for r in known if r.number <= after and r.number in open_numbers]
            newer = [r for r in known if r.number > after][:limit]
            if after < 0:
                shown, newer = [r for r in known if r.total_seconds is None], []
            page = RecordPage(newer[-1].number if newer else self._count, (*shown, *newer))
            self._followed = time.monotonic()
            # A reader that gets no ended request has received the ones before.
            if all(record.total_seconds is None for record in page.records):
                self.untold = False
                self._asked.notify_all()
        return page

    def wait_until_told(self, timeout: float) -> None:
        """Block until a reader that follows the requests has the last ends, a second at most."""
        if time.monotonic() - self._followed < FOLLOWED_SECONDS:
            told = partial(turn, self._asked, lambda: not self.untold)
            wait_in_turns(told, min(timeout, FOLLOWED_SECONDS))

    def records(self, after: int = 0) -> list[RequestRecord]:
        return [asked.record for asked in self.latest() if asked.record.number > after]

    def in_flight(self) -> list[RequestRecord]:
        """Return the records of the requests that have not ended, oldest first."""
        return [record for record in self.records() if record.total_seconds is None]

    def latest(self) -> list[AskedRequest]:
        with self.lock:
            return list(self._latest)

    def state(self, number: int | None) -> str:
        record = next((r for r in self.records() if r.number == number), None)
        if record is None:
            return ""
        if record.total_seconds is None:
            return "still being computed"
        return "it ended before" if record.generated_tokens else "it was cut off"

    @uninterrupted
    def forget(self, namespace: BlockKey) -> None:
        """Remember no tokens of a namespace any more; counts, times and reasons stay."""
        self.explainer.forget(namespace)
        self.prepared.forget(namespace)
        name = namespace.hex()
        with self.lock:
            for asked in self._latest:
                if asked.record.namespace == name:
                    asked.walked = None
                    if asked.explanation is not None:
                        asked.explanation = replace(asked.explanation, before=0, here=(), there=())


Decoder = Callable[[list[int], str], str | None]
"""Turns tokens into text, for the model of a label; None for a model that it does not know."""


def decoded(decoder: Decoder | None, tokens: list[int], model: str) -> str | None:
    try:
        text = None if decoder is None else decoder(tokens, model)
    except Exception as error:
        _log.debug("tokens are not decoded: %s", error)
        return None
    return text if isinstance(text, str) else None


def answer(log: RequestLog, decoder: Decoder | None, last: int, number: int | None) -> WhyReply:
    """Return the latest requests, or the one of a number, oldest first; decodes text."""
    asked = [one for one in log.latest() if number in (None, one.record.number)][-last:]
    return WhyReply(
        [_request(one, decoder) for one in asked],
        Remembered(log.explainer.limit_bytes, log.explainer.nbytes, log.explainer.began),
    )


def explained(log: RequestLog, limit: int) -> list[ExplainedRequest]:
    """Return the latest requests, newest first, each with its `why`, which shows nothing of its
    text."""
    return [_explained(asked) for asked in reversed(log.latest()[-limit:])]


def _explained(asked: AskedRequest, **more: object) -> ExplainedRequest:
    told = asked.explanation
    return extended(
        ExplainedRequest,
        asked.record,
        pid=os.getpid(),
        why="" if told is None else why(replace(told, here=(), there=())),
        **more,
    )


def _request(asked: AskedRequest, decoder: Decoder | None) -> ExplainedRequest:
    record, told = asked.record, asked.explanation
    if told is None:
        return _explained(asked)
    here, there = (
        decoded(decoder, list(tokens), record.model) if tokens else None
        for tokens in (told.here, told.there)
    )
    told = replace(told, here_text=here, there_text=there)
    return _explained(asked, words=sentence(told, record), explanation=told)
