"""mlx-lm's BatchGenerator, whose rows are stored while they are computed, and fail alone."""

import gc
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, GenerationBatch, PromptProcessingBatch
from mlx_lm.models.cache import BatchKVCache, make_prompt_cache

from omlx_cache.adapters.registry import extract_row
from omlx_cache.flights import PromptFlight
from omlx_cache.integrations.mlx_lm.following import FollowedRows
from omlx_cache.integrations.mlx_lm.requests import ServedRequest
from omlx_cache.integrations.mlx_lm.served_cache import LateCaches, ServedPromptCache
from omlx_cache.integrations.rows import BatchTimer, row_caches, row_of, stop_row_at
from omlx_cache.mlx_lm_versions import is_old
from omlx_cache.requests.log import AskedRequest

_log = logging.getLogger(__name__)

LATE_TOKENS = 16
"""So near a prompt's end a chunk is stored after the answer's first token: a client waits for it.
"""
SEND_SECONDS = 0.0003
"""Seconds for which other threads have the interpreter before that, to send the token."""


@dataclass(slots=True)
class _Row:
    """An inserted row: its whole prompt, and where that one's segments end. `said` are the tokens
    that its client got, `stops` the positions where its prompt stops for others, and `late` the
    ends of segments that are stored once the first token is out."""

    prompt: list[int]
    ends: list[int]
    max_tokens: int
    sampling: tuple[Any, ...]
    until: Any
    request: ServedRequest | None
    flight: PromptFlight | None
    said: list[int] = field(default_factory=list)
    stops: set[int] = field(default_factory=set)
    late: LateCaches | None = None

    def land(self) -> None:
        """Tell those that wait for the prompt that no more of it is computed."""
        if self.flight is not None:
            self.flight.end()
            self.flight = None


class _Resumed:
    """Stop sequences of which a row has seen a part. mlx-lm before 0.32 calls `make_state`."""

    def __init__(self, stops: Any, said: Sequence[int]) -> None:
        self._stops, self._said = stops, said

    def matcher(self) -> Any:
        matcher = self._stops.matcher()
        for token in self._said:
            matcher.advance(token)
        return matcher

    def make_state(self) -> Any:
        state = self._stops.make_state()
        for token in self._said:
            state, _sequence, _name = self._stops.match(state, token)
        return state

    def match(self, state: Any, token: int) -> Any:
        return self._stops.match(state, token)


class ServedBatches(BatchGenerator):  # type: ignore[misc]
    """Stores each row's blocks after each step, as far as the tiers take them at once, and tells
    the requests that wait for them. The blocks of an answer, and the last ones of its prompt, are
    stored once their tokens are out, while the next one is computed.

    After an error each row at work is computed alone, up to its next token, from its blocks in the
    cache. A row that fails alone has failed; the others go on together. `current` gives the request
    of the row that is inserted. Mutable by the generation thread: `_rows`, by uid; after an error
    `_suspects`, the first of which is computed next, and `_cleared`, batches of one.
    """

    def __init__(
        self,
        cache: ServedPromptCache,
        current: Callable[[], ServedRequest | None],
        *args: Any,
        **options: Any,
    ) -> None:
        self._cache, self._current = cache, current
        self._rows: dict[int, _Row] = {}
        self._followed = FollowedRows(cache.follow)
        self._suspects: list[int] = []
        self._cleared: list[Any] = []
        self._timer = BatchTimer(self._asked)
        self._unprocessed_sequences: deque[Any]
        super().__init__(*args, **options)

    def insert_segments(
        self, segments: Any, max_tokens: Any = None, caches: Any = None, *args: Any, **options: Any
    ) -> Any:
        caches = [row_caches(self, row) for row in caches or [None] * len(segments)]
        uids = super().insert_segments(segments, max_tokens, caches, *args, **options)
        for inserted in list(self._unprocessed_sequences)[-len(uids) :]:
            uid, parts, most, _caches, held, *sampling, until = inserted
            prompt = [*held, *chain.from_iterable(parts)]
            *ends, _all = accumulate(map(len, parts), initial=len(held))
            request = self._current()
            flight = None if request is None else request.flight
            if flight is None:
                flight = self._cache.flight(self._cache.key, prompt, len(held), ends)
            else:
                # It began at the first token, before the restored part was known.
                flight.reach(len(held))
            self._rows[uid] = _Row(prompt, ends, most, tuple(sampling), until, request, flight)
        return uids

    def next(self) -> tuple[list[Any], list[Any]]:
        if any(row.late and row.said for row in self._rows.values()):
            time.sleep(SEND_SECONDS)
        waiting = {n: self._rows[n].request for n, *_ in self._unprocessed_sequences}
        left = {n: r for n, r in waiting.items() if r and (r.is_over or r.has_left())}
        if left:
            # The server ends a request that it hears of and whose client left, and removes its row
            # when it hears of none, or after half a second.
            return [
                PromptProcessingBatch.Response(n, (0, 0), False, False)
                for n, request in left.items()
                if not request.is_over
            ], []
        for uid, row in self._rows.items():
            if row.said or (row.late and (waiting or set(self._prompt_batch.uids) - {uid})):
                self._store(uid, row)
        try:
            prompts, generated = self._next_alone() if self._suspects else self._step()
        except Exception as error:
            return self._failed(error), []
        for response in generated:
            spoken = self._rows.get(response.uid)
            if response.finish_reason is not None:
                if spoken is not None and spoken.late is not None:
                    spoken.late.insert(response.prompt_cache)
                self._forget(response.uid)
            elif spoken is not None:
                spoken.said.append(response.token)
        return prompts, generated

    def _step(self) -> tuple[list[Any], list[Any]]:
        for uid, row in self._rows.items():
            if row.flight is not None:
                row.stops.update(set(row.flight.take_wanted()) - set(row.ends))
            for position in row.stops:
                # Each time: a row that has begun again knows nothing of it.
                stop_row_at(self, uid, position)
        began = time.perf_counter()
        prompts, generated = super().next()
        self._timer.step(prompts, time.perf_counter() - began)
        for response in prompts:
            self._prompted(response)
        return prompts, generated

    def extract_cache(self, uids: Sequence[int]) -> dict[int, tuple[list[Any], list[int]]]:
        """Return rows' caches and tokens until the next step; a stand-in for the caches of a row
        that is stored later. mlx-lm copies each prefix whole, before the answer's first token."""
        found = {uid: row_of(self, uid) for uid in uids}
        rest = super().extract_cache([uid for uid in uids if found[uid] is None])
        late = {uid: self._rows[uid].late for uid in uids if uid in self._rows}
        rows = {
            uid: (
                late.get(uid) or [extract_row(cache, row.slot) for cache in row.caches],
                row.tokens,
            )
            for uid, row in found.items()
            if row is not None
        }
        return {**rest, **rows}

    def remove(self, uids: Sequence[int], *args: Any, **options: Any) -> Any:
        for uid in uids:
            if uid in self._rows:
                self._store(uid, self._rows[uid])
            self._forget(uid)
        self._suspects = [uid for uid in self._suspects if uid not in uids]
        self._cleared = [batch for batch in self._cleared if not set(batch.uids) & set(uids)]
        removed = super().remove(uids, *args, **options)
        self._end_trial()
        return removed

    def close(self) -> None:
        for uid in list(self._rows):
            self._forget(uid)
        super().close()

    def _asked(self, uid: Any) -> AskedRequest | None:
        row = self._rows.get(uid)
        return None if row is None or row.request is None else row.request.asked

    def _prompted(self, response: Any) -> None:
        row, place = self._rows.get(response.uid), row_of(self, response.uid)
        if row is None:
            return
        if response.end_of_prompt:
            if row.late is None:
                row.land()
            row.stops.clear()
        elif place is not None:
            position = len(place.tokens)
            if position in row.stops:
                # mlx-lm looks up the type of a segment that ends; a stop ends none.
                response.end_of_segment = False
            keeps_tokens = not is_old() and all(type(c) is BatchKVCache for c in place.caches)
            if keeps_tokens and len(row.prompt) - position <= LATE_TOKENS:
                row.late = row.late or LateCaches()
                return
            self._followed.store(self, response.uid, row.stops)
            row.stops = {stop for stop in row.stops if stop > position}
            if row.flight is not None:
                row.flight.reach(position)

    def _store(self, uid: int, row: _Row) -> None:
        """Store the blocks that a row has completed, and the late ends of its segments."""
        self._followed.store(self, uid)
        place = None if row.late is None else row_of(self, uid)
        if row.late is None or place is None:
            return
        late, row.late = row.late, None
        late.insert([extract_row(cache, place.slot) for cache in place.caches])
        if row.flight is not None:
            row.flight.reach(len(place.tokens))
        if row.said:
            row.land()

    def _forget(self, uid: int) -> None:
        row = self._rows.pop(uid, None)
        if row is not None:
            self._unfollow(uid)
            row.land()

    def _unfollow(self, uid: int) -> None:
        self._timer.forget(uid)
        self._followed.end(uid)

    def _failed(self, error: Exception) -> list[Any]:
        """Empty the batches; returns the response that ends a failed request in the server."""
        queued = {inserted[0] for inserted in self._unprocessed_sequences}
        failed = self._suspects[:1] or [uid for uid in self._rows if uid not in queued]
        del self._suspects[:1]
        self._empty()
        for uid in failed:
            self._unfollow(uid)
        gc.collect()
        mx.clear_cache()
        if len(failed) != 1:
            # To put rows together again may be what failed.
            self._cleared.clear()
            self._suspects = failed
            _log.warning(
                "an error in a batch of %d: each is computed alone: %s", len(failed), error
            )
            return []
        request = self._rows[failed[0]].request
        self._forget(failed[0])
        self._end_trial()
        if request is not None:
            request.fail(error)
        return [PromptProcessingBatch.Response(failed[0], (0, 0), False, True)]

    def _next_alone(self) -> tuple[list[Any], list[Any]]:
        prompts: list[Any] = []
        generated: list[Any] = []
        waiting = self._unprocessed_sequences
        self._unprocessed_sequences = deque([self._again(self._suspects[0])])
        try:
            while not generated:
                fed, generated = self._step()
                prompts += fed
        finally:
            self._unprocessed_sequences = waiting
        del self._suspects[0]
        if len(self._generation_batch):
            self._cleared.append(self._generation_batch)
        self._empty()
        self._end_trial()
        for response in prompts:
            # mlx-lm would look for an end of a segment at a place where it is no more.
            response.end_of_segment = False
        return prompts, generated

    def _end_trial(self) -> None:
        """Put the cleared rows together again, when no row is suspected any more."""
        if not self._suspects:
            for batch in self._cleared:
                self._generation_batch.extend(batch)
            self._cleared.clear()

    def _empty(self) -> None:
        self._prompt_batch = PromptProcessingBatch.empty(
            self.model, self.sampler, prefill_step_size=self.prefill_step_size
        )
        self._generation_batch = GenerationBatch.empty(self.model, self.sampler)
        self._currently_processing: list[Any] = []

    def _again(self, uid: int) -> tuple[Any, ...]:
        """Return a row as mlx-lm queues it, which goes on after what its client got."""
        row = self._rows[uid]
        tokens = [*row.prompt, *row.said]
        restored, rest = self._cache.refetch(tokens)
        cache = row_caches(self, restored)
        start = len(tokens) - len(rest)
        last = len(tokens) - 1
        cuts = sorted({start, *(end for end in row.ends if start < end < last), last, last + 1})
        return (
            uid,
            [tokens[a:b] for a, b in pairwise(cuts)],
            row.max_tokens - len(row.said),
            make_prompt_cache(self.model, self.max_kv_size) if cache is None else cache,
            tokens[:start],
            *row.sampling,
            _Resumed(row.until, row.said),
        )
