"""mlx-lm's BatchGenerator, whose requests outlive the error of one of them."""

import gc
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, GenerationBatch, PromptProcessingBatch
from mlx_lm.models.cache import make_prompt_cache

from omlx_cache.integrations.mlx_lm.server.replies import Reply
from omlx_cache.integrations.old_batches import row_caches
from omlx_cache.mlx_lm_versions import is_old

_log = logging.getLogger(__name__)

Restore = Callable[[list[int]], tuple[list[Any] | None, list[int]]]
"""Gives a prompt cache for a prefix of the tokens, and the tokens after it, at least one."""


@dataclass
class _Job:
    """What a row was inserted with, and how far its client was told: enough to compute it again.

    `fed` counts tokens of `segments`; `said` are tokens that were generated since it was inserted,
    `spoken` those from before that.
    """

    segments: list[list[int]]
    held: list[int]
    max_tokens: int
    sampler: Any
    processors: Any
    stops: Any
    reply: Reply | None
    spoken: list[int] = field(default_factory=list)
    fed: int = 0
    said: list[int] = field(default_factory=list)


class _Resumed:
    """Stop sequences of which a row has seen a part."""

    def __init__(self, stops: Any, spoken: Sequence[int]) -> None:
        self._stops, self._spoken = stops, spoken

    def matcher(self) -> Any:
        matcher = self._stops.matcher()
        for token in self._spoken:
            matcher.advance(token)
        return matcher

    def make_state(self) -> Any:
        """As `matcher`, for mlx-lm before 0.32."""
        state = self._stops.make_state()
        for token in self._spoken:
            state, _sequence, _name = self._stops.match(state, token)
        return state

    def match(self, state: Any, token: int) -> Any:
        return self._stops.match(state, token)


class RecoveringBatchGenerator(BatchGenerator):  # type: ignore[misc]
    """After an error each row that was under way is computed alone, up to its next token; the one
    that fails alone has failed, and the others go on together.

    What a failed step has left in the batches is of no use: rows begin again from what `restore`
    finds. Mutable by the generation thread: `_jobs` by uid; after an error `_suspects`, in
    order, `_tried`, the one that is computed, `_alone`, its queue, and `_cleared`, batches of one.
    """

    def __init__(
        self, *args: Any, reply: Callable[[], Reply | None], restore: Restore, **options: Any
    ) -> None:
        self._reply, self._restore = reply, restore
        self._jobs: dict[int, _Job] = {}
        self._suspects: deque[int] = deque()
        self._tried: int | None = None
        self._alone: deque[Any] = deque()
        self._cleared: list[Any] = []
        self._unprocessed_sequences: deque[Any]
        super().__init__(*args, **options)

    def insert_segments(
        self, segments: Any, max_tokens: Any = None, caches: Any = None, *args: Any, **options: Any
    ) -> Any:
        if is_old():
            caches = [row_caches(self, row) for row in caches or [None] * len(segments)]
        uids = super().insert_segments(segments, max_tokens, caches, *args, **options)
        for row in list(self._unprocessed_sequences)[-len(uids) :]:
            uid, parts, most, _cache, held, sampler, processors, stops = row
            self._jobs[uid] = _Job(
                list(parts), list(held), most, sampler, processors, stops, self._reply()
            )
        return uids

    def next(self) -> tuple[list[Any], list[Any]]:
        try:
            if self._tried is None and not self._suspects:
                prompts, generated = super().next()
            else:
                prompts, generated = self._next_alone()
        except Exception as error:
            return self._failed(error), []
        self._note(prompts, generated)
        return prompts, generated

    def remove(self, uids: Sequence[int], *args: Any, **options: Any) -> Any:
        for uid in uids:
            self._jobs.pop(uid, None)
            if uid in self._suspects:
                self._suspects.remove(uid)
            if uid == self._tried:
                self._tried = None
                self._alone.clear()
            for batch in [b for b in self._cleared if uid in b.uids]:
                self._cleared.remove(batch)
        removed = super().remove(uids, *args, **options)
        if self._tried is None:
            self._end_trial()
        return removed

    def _dropped(self, uids: Sequence[int]) -> None:
        """Called when rows lose their places in the batches, before they begin again."""

    def _note(self, prompts: Sequence[Any], generated: Sequence[Any]) -> None:
        for response in prompts:
            if response.uid in self._jobs:
                self._jobs[response.uid].fed = response.progress[0]
        for response in generated:
            if response.finish_reason is not None:
                self._jobs.pop(response.uid, None)
            elif response.uid in self._jobs:
                self._jobs[response.uid].said.append(response.token)

    def _failed(self, error: Exception) -> list[Any]:
        """Empty the batches; returns what has the server take a failed request out of its books."""
        waiting = {row[0] for row in self._unprocessed_sequences} | set(self._suspects)
        rows = [uid for uid in self._jobs if uid not in waiting]
        if self._tried is not None:
            cleared = [uid for batch in self._cleared for uid in batch.uids]
            rows = [uid for uid in rows if uid not in cleared]
        self._tried = None
        self._alone.clear()
        self._empty()
        self._dropped(rows)
        gc.collect()
        mx.clear_cache()
        if len(rows) != 1:
            # A merge of the cleared ones may be what failed.
            self._cleared.clear()
            self._suspects.extend(rows)
            _log.warning("an error in a batch of %d: each is computed alone: %s", len(rows), error)
            return []
        self._end_trial()
        job = self._jobs.pop(rows[0])
        if job.reply is not None:
            job.reply.fail(error)
        return [PromptProcessingBatch.Response(rows[0], (0, 0), False, True)]

    def _next_alone(self) -> tuple[list[Any], list[Any]]:
        """Compute the next suspect, and nothing else: what waits goes on waiting."""
        if self._tried is None:
            self._tried = self._suspects.popleft()
            self._alone.append(self._again(self._tried))
        waiting, self._unprocessed_sequences = self._unprocessed_sequences, self._alone
        try:
            prompts, generated = super().next()
        finally:
            self._unprocessed_sequences = waiting
        if generated:
            if len(self._generation_batch):
                self._cleared.append(self._generation_batch)
            self._empty()
            self._tried = None
            self._end_trial()
        return prompts, generated

    def _end_trial(self) -> None:
        """Put the rows that were cleared together again, when nobody is suspected any more."""
        if self._suspects:
            return
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
        """Return a row as mlx-lm queues it, which goes on after what its client was told."""
        job = self._jobs[uid]
        tokens = [*job.held, *chain.from_iterable(job.segments), *job.said]
        cache, rest = self._restore(tokens)
        cache = row_caches(self, cache)
        position = len(tokens) - len(rest)
        spoken = [*job.spoken, *job.said]
        again = _Job(
            _segments(tokens, position, job),
            tokens[:position],
            job.max_tokens - len(job.said),
            job.sampler,
            job.processors,
            job.stops,
            job.reply,
            spoken,
        )
        self._jobs[uid] = again
        return (
            uid,
            list(again.segments),
            again.max_tokens,
            make_prompt_cache(self.model, self.max_kv_size) if cache is None else cache,
            list(again.held),
            again.sampler,
            again.processors,
            _Resumed(again.stops, spoken),
        )


def _segments(tokens: list[int], position: int, job: _Job) -> list[list[int]]:
    """Return the tokens after `position` as mlx-lm wants them: cut where a segment ends that its
    client was not told of, the last token in one of its own."""
    end = len(job.held)
    told = end + job.fed
    cuts = [position]
    for segment in job.segments:
        end += len(segment)
        if end > max(told, position):
            cuts.append(end)
    cuts = sorted({*cuts, len(tokens) - 1, len(tokens)})
    return [tokens[a:b] for a, b in pairwise(cuts)]
