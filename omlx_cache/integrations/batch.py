"""mlx-lm's BatchGenerator with a prefix cache.

The generator pads and merges the caches of its requests, so a session's own cache is given
away when its request starts, and what is stored is extracted from the batch.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from omlx_cache.begun import Begun, listed
from omlx_cache.commit.committer import CommitResult
from omlx_cache.integrations.host_server import HostServer, names_of
from omlx_cache.integrations.rows import (
    BatchTimer,
    heeds_padding,
    paged_source,
    row_caches,
    row_of,
    segments_of,
    stop_row_at,
)
from omlx_cache.mlx_lm_versions import TESTED, stop_options
from omlx_cache.prefix import PrefixCache
from omlx_cache.preparation import Preparation
from omlx_cache.requests.log import AskedRequest
from omlx_cache.session import Session
from omlx_cache_storage.calls import is_count
from omlx_cache_storage.keys import as_tokens

if TYPE_CHECKING:
    from mlx_lm.generate import BatchGenerator

_log = logging.getLogger(__name__)

HowEnded = Callable[[list[int]], str | None]
"""Says of an answer's tokens how it ended: "tool_call", "turn", or None for unknown."""

HOST = HostServer("mlx-lm", "mlx-lm", TESTED)
NEEDED = names_of(
    "mlx_lm.generate", "BatchGenerator", "model next remove insert_segments extract_cache"
)
PREPARATIONS = 16
"""Prompts to be prepared, at most: the latest ones."""
HELD_SECONDS = 0.05
"""How long `next` waits for another thread's blocks when it has nothing else to do."""


@dataclass(slots=True)
class _Request:
    """`stops`: token counts at which it must be checkpointed; `offered`: the boundary up to which
    its blocks were offered, taken or not."""

    uid: int
    session: Session
    prompt_length: int
    ended: HowEnded | None = None
    stops: set[int] = field(default_factory=set)
    generated: int = 0
    offered: int = 0


class _Waiting(NamedTuple):
    """A request whose prefix is still read, or computed by another."""

    begun: Begun
    insert: Callable[[Session], None]


class BatchedToken(NamedTuple):
    """`commit` says what was stored, with the last token of a request."""

    uid: int
    token: int
    finish_reason: str | None
    commit: CommitResult | None


class CachedBatchGenerator:
    """Continuous batching with prefix reuse. Use it on the thread that runs the model.

    `generator` is the caller's; requests are inserted and removed through this object only. While
    a request's prefix is read from the disk, the others go on; one whose next blocks another is
    computing joins when they are there. Prompts of a model whose states take padding for tokens are
    computed one after the other. Raises UnusableHost for a version of mlx-lm that cannot have it,
    and ValueError for a cache of another model. Mutable: `_requests`, by the generator's uid,
    `_waiting`, by ours, and `_preparations`, the first of which is computed next.
    """

    def __init__(self, generator: "BatchGenerator", cache: PrefixCache) -> None:
        if not isinstance(cache, PrefixCache):
            raise TypeError(
                f"CachedBatchGenerator(generator, cache) got {type(cache).__name__} for the cache, "
                "which must be a PrefixCache"
            )
        HOST.takes(
            generator, NEEDED, lambda: generator.model, require=True, make_cache=cache.fresh_cache
        )
        if not cache.is_of(generator.model):
            raise ValueError("the generator's model is not the one of the PrefixCache")
        self._generator = generator
        self._cache = cache
        self._block_size = cache.store.settings.block_size
        if not heeds_padding(generator.model, cache.fresh_cache):
            generator.prefill_batch_size = 1
        self._requests: dict[int, _Request] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._preparations: deque[Preparation] = deque()
        self._uids = count()
        self._timer = BatchTimer(self._asked)

    def __len__(self) -> int:
        return len(self._requests) + len(self._waiting)

    def submit(
        self,
        tokens: Sequence[int],
        *,
        max_tokens: int,
        salt: str | bytes | None = None,
        segments: Sequence[int] = (),
        sampler: Any = None,
        logits_processors: Sequence[Any] = (),
        stop_sequences: Any = None,
        priority: str = "normal",
        ended: HowEnded | None = None,
    ) -> int:
        """Begin to restore what is cached of a prompt and return the request's uid, at once.

        It joins the batch when its prefix has come from the disk, or from a request that is
        computing it, or when that takes longer than the settings allow. `segments` are token counts
        at which a chat's parts end (its system prompt, say): a hybrid model can be restored there
        later. `priority` is a hint, as for `PrefixCache.session`; `ended` is asked for one, as for
        `Session.commit`, when the generator says "stop". Raises ValueError for an empty prompt, and
        for a `max_tokens` below 1; TypeError or ValueError for tokens that are no integers, and for
        other arguments that the generator cannot take.
        """
        # Refused here, not when its prefix has come: that would end the others' step.
        prompt: list[int] = as_tokens(listed(tokens)).tolist()
        if not prompt:
            raise ValueError("tokens: an empty prompt")
        if not is_count(max_tokens) or max_tokens < 1:
            raise ValueError(f"max_tokens must be a number of at least one, got {max_tokens!r}")
        processors = list(logits_processors)
        uid = next(self._uids)

        def insert(session: Session) -> None:
            cached = session.cached_tokens
            session.want_snapshots(segments)
            stops = _stops(session, cached, len(prompt))
            restored = session.take_cache() if cached else None
            try:
                (inner,) = self._generator.insert_segments(
                    segments=[segments_of(prompt, cached, stops)],
                    max_tokens=[int(max_tokens)],
                    caches=[row_caches(self._generator, restored)],
                    all_tokens=[prompt[:cached]],
                    samplers=[sampler],
                    logits_processors=[processors],
                    **stop_options(stop_sequences),
                )
            except BaseException:
                session.abort()
                raise
            if not cached:
                session.take_cache()
            self._requests[inner] = _Request(uid, session, len(prompt), ended, set(stops))

        self._give_up_preparing()
        # A batch copies what it is given, so room for more tokens would be wasted.
        self._waiting[uid] = _Waiting(
            self._cache.begin(prompt, salt=salt, max_new_tokens=0, priority=priority), insert
        )
        self._start(uid)
        return uid

    def prepare(
        self, tokens: Sequence[int], *, salt: str | bytes | None = None, most: int | None = None
    ) -> None:
        """Have `next` compute the beginning of a coming prompt while there is no request, as for
        `PrefixCache.prepare`. The next request gives it up, and so do `PREPARATIONS` later ones."""
        if len(self._preparations) == PREPARATIONS:
            self._preparations.popleft().close()
        self._preparations.append(self._cache.prepare(tokens, salt=salt, most=most))

    def _give_up_preparing(self) -> None:
        while self._preparations:
            self._preparations.popleft().close()

    def _start(self, uid: int) -> bool:
        """Insert a request whose prefix has come, or has been waited for long enough."""
        begun, insert = self._waiting[uid]
        ready = begun.ready
        if not ready and (begun.held or begun.deadline > 0):
            return False
        del self._waiting[uid]
        insert(Session(begun, None if ready else 0.0))
        return True

    def _asked(self, inner: Any) -> AskedRequest | None:
        request = self._requests.get(inner)
        return None if request is None else request.session.asked

    def cached_tokens(self, uid: int) -> int:
        """Return how many tokens of a live request's prompt were restored, 0 while it waits."""
        if uid in self._waiting:
            return 0
        by_uid = {request.uid: request for request in self._requests.values()}
        return by_uid[uid].session.cached_tokens

    def _start_waiting(self) -> None:
        """Insert what has come; wait for one when there is nothing else to do."""
        started = [uid for uid in list(self._waiting) if self._start(uid)]
        if self._waiting and not started and not self._requests:
            reading = (uid for uid, waiting in self._waiting.items() if not waiting.begun.held)
            first = next(reading, next(iter(self._waiting)))
            begun = self._waiting[first].begun
            begun.wait(HELD_SECONDS if begun.held else begun.deadline)
            self._start(first)

    def _stop_where_others_part(self) -> None:
        """Interrupt prompts where others, which wait for them, go on otherwise."""
        for uid, request in self._requests.items():
            for position in request.session.wanted_stops():
                if stop_row_at(self._generator, uid, position):
                    request.stops.add(position)

    def next(self) -> list[BatchedToken]:
        """Do one step of prefill and decoding, store what became due, and return the tokens;
        without a request, prepare."""
        if self._preparations and not self:
            if not self._preparations[0].step(self._generator.model):
                self._preparations.popleft()
            return []
        self._start_waiting()
        self._stop_where_others_part()
        began = time.perf_counter()
        prompts, generated = self._generator.next()
        self._timer.step(prompts, time.perf_counter() - began)
        reached: dict[int, int] = {}
        for response in prompts:
            if response.uid in self._requests and not response.end_of_prompt:
                request = self._requests[response.uid]
                reached[response.uid] = request.session.cached_tokens + response.progress[0]
                self._store_blocks(response.uid, request, reached[response.uid])
        self._checkpoint([r.uid for r in prompts if r.end_of_segment and not r.end_of_prompt])
        for uid, position in reached.items():
            self._requests[uid].session.reach(position)
        return [self._take(response) for response in generated]

    def _store_blocks(self, uid: int, request: _Request, reached: int) -> None:
        session = request.session
        if reached - max(session.stored, request.offered) < self._block_size:
            return
        # What has no room now is not tried again with every token.
        request.offered = reached // self._block_size * self._block_size
        row = row_of(self._generator, uid)
        if row is None:
            return
        known = len(session.tokens)
        session.extend(row.tokens[known:])
        source = paged_source(row, session.stored)
        if source is not None and source.arrays:
            session.store_row(source, len(row.tokens))

    def cancel(self, uid: int) -> bool:
        """Drop a request; False for one that is not there. Its completed blocks stay stored."""
        waiting = self._waiting.pop(uid, None)
        if waiting is not None:
            waiting.begun.cancel()
            return True
        for inner, request in self._requests.items():
            if request.uid == uid:
                self._generator.remove([inner])
                self._timer.forget(inner)
                self._requests.pop(inner).session.abort()
                return True
        return False

    def close(self) -> None:
        """Cancel everything; the generator stays the caller's."""
        self._give_up_preparing()
        for uid in [*self._waiting, *(request.uid for request in self._requests.values())]:
            self.cancel(uid)

    def _checkpoint(self, uids: Sequence[int]) -> None:
        requests = {uid: self._requests[uid] for uid in uids if uid in self._requests}
        due = [uid for uid, request in requests.items() if request.stops]
        # Extraction copies a whole prefix: only for models that have something to capture.
        for uid, (caches, tokens) in self._generator.extract_cache(due).items():
            request = self._requests[uid]
            position = len(tokens)
            if position in request.stops:
                request.stops.discard(position)
                row = row_of(self._generator, uid)
                source = None if row is None else paged_source(row, request.session.stored)
                request.session.checkpoint(position, caches, row=source)

    def _take(self, response: Any) -> BatchedToken:
        request = self._requests[response.uid]
        result = None
        if response.finish_reason is not None:
            del self._requests[response.uid]
            fed = list(response.all_tokens)
            request.session.extend(fed[len(request.session.tokens) :])
            ended = _how(request, response.finish_reason, fed[request.prompt_length :])
            result = request.session.commit(response.prompt_cache, release=True, ended=ended)
        else:
            request.generated += 1
            reached = request.prompt_length + request.generated - 1
            self._store_blocks(response.uid, request, reached)
        return BatchedToken(request.uid, response.token, response.finish_reason, result)


def _how(request: _Request, finish_reason: str, answer: list[int]) -> str | None:
    if finish_reason != "stop" or request.ended is None:
        return "length" if finish_reason == "length" else None
    try:
        return request.ended(answer)
    except Exception:
        _log.exception("how an answer ended is not known")
        return None


def _stops(session: Session, start: int, length: int) -> list[int]:
    """Return where a prompt must be interrupted: at snapshots, and before its last token, which the
    generator feeds by itself."""
    if not session.captures:
        return []
    wanted = {stop for stop in session.snapshot_positions if start < stop < length}
    return sorted(wanted | ({length - 1} if length - 1 > start else set()))
