"""Session: one request's hold on the cache, from lookup to commit."""

import logging
import os
import sys
import time
import weakref
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import takewhile
from operator import index
from typing import Any

from omlx_cache import reasons
from omlx_cache.adapters.base import STATE, UnsupportedCache
from omlx_cache.arrays.mlxio import evaluate
from omlx_cache.begun import Begun, kinds_of, listed
from omlx_cache.commit.committer import CommitResult, Committer
from omlx_cache.commit.live import LiveExtent, LiveProgress, Staging, extent_of
from omlx_cache.flights import PromptFlight
from omlx_cache.pages.cut import Source
from omlx_cache.pages.layout import Layout, layout_of
from omlx_cache.requests.explainer import Walked
from omlx_cache.requests.explanation import Explanation
from omlx_cache.requests.log import AskedRequest
from omlx_cache.scope import unsupported
from omlx_cache_storage.calls import is_whole, uninterrupted
from omlx_cache_storage.eviction.order import ENDED, Ended, is_ended
from omlx_cache_storage.keys import KeyChain, as_tokens

_log = logging.getLogger(__name__)

TOKENS = "whole numbers of tokens"
INTEGERS = "64-bit integers; the sequence is stored up to here"
INT64 = range(-(2**63), 2**63)


class Session(AbstractContextManager["Session"]):
    """Restores on construction; stores blocks while they are computed, and the last ones on
    `commit`.

    Use it as a context manager, on the thread that runs the model; only `abort` may come from
    another. No method raises for a failure of the cache or the disk, or for an unsupported model:
    that is a miss, or a skipped page, with a reason. Leaving without commit frees all that it held;
    the blocks that it passed on stay stored.

    `_unknown` is 1 once a token was given that is none: what the cache holds behind the known ones
    has no key. `_is_left`: it was committed, or its block left.

    Attributes: `cached_tokens` (int, at most len(tokens) - 1), `miss_reason` (None, or why no more
    was restored), `prompt_cache` (the list for `model(..., cache=...)`), `asked` (the request's
    record).
    """

    @uninterrupted
    def __init__(self, begun: Begun, deadline: float | None = None) -> None:
        scope = self._scope = begun.scope
        self._pid = os.getpid()
        self._counters, self._arguments = scope.store.counters, scope.store.arguments
        self._staging = Staging(self._counters, scope.store.snapshot_bytes)
        self.cached_tokens = 0
        self.cached_cold_tokens = 0
        self.miss_reason: str | None = None
        self.prompt_cache: list[Any] = []
        self._layout: Layout | None = None
        self._prompt_tokens = list(begun.tokens)
        self._prompt_length = len(self._prompt_tokens)
        self._fed = self._planned = self._unknown = 0
        self._progress: LiveProgress | None = None
        self._committer: Committer | None = None
        self._flight: PromptFlight | None = None
        self._is_left = False
        self._due_at = 0
        self.asked = scope.store.requests.ask(scope.namespace, self._prompt_length)
        self._finalizer = weakref.finalize(
            # It may run anywhere, under any lock.
            self,
            self._counters.defer,
            partial(_lose, self._staging, self.asked),
        )
        began = time.perf_counter()
        try:
            self._begin(begun, deadline)
        except UnsupportedCache as error:
            self.miss_reason = unsupported(error)
        except Exception as error:
            _log.exception("restore failed, the request is computed in full")
            self.miss_reason = f"{reasons.ERROR}:{type(error).__name__}"
        if not self.prompt_cache:
            self.prompt_cache = scope.fresh()
        if begun.held_seconds:
            self.asked.waited(begun.held_seconds, begun.waited_for)
        self.asked.restored(
            self.cached_tokens,
            self.cached_cold_tokens,
            time.perf_counter() - began,
            self.miss_reason,
        )

    def _begin(self, begun: Begun, deadline: float | None) -> None:
        scope, chain = self._scope, begun.chain
        restored = begun.take(deadline)
        point = restored.point
        start = point.position
        if chain is not None:
            self.asked.walked = Walked(chain, scope.namespace.groups, point.matched, point.lacking)
            self.asked.remote_tokens = restored.remote_tokens
            layout = layout_of(restored.prompt_cache)
            length, branch = self._prompt_length, point.wanted_state
            committer = scope.committer(
                chain,
                self._staging,
                start=start,
                local=restored.local_tokens,
                prompt_length=length,
                own=point.root_first,
                stops=() if scope.trims else scope.stops(start, length, branch),
                stamp=begun.stamp,
                priority=begun.priority,
            )
            progress = LiveProgress(layout, start)
            # No request waits for less than a block.
            if length - start >= chain.block_size:
                stops = None if scope.trims else committer.stops
                self._flight = scope.store.flights.begin(chain, start, stops)
                self._flight.number = self.asked.record.number
            self._layout, self._committer, self._progress = layout, committer, progress
        self.prompt_cache = restored.prompt_cache
        self.miss_reason = point.reason
        self.cached_tokens = self._fed = self._planned = start
        self.cached_cold_tokens = restored.cold_tokens

    def __exit__(self, *_: object) -> None:
        self._is_left = True
        self.abort()

    @property
    def explanation(self) -> Explanation | None:
        """Why no more was restored, with the knowledge of earlier prompts; `str()` says it."""
        return self.asked.explanation

    @property
    def tokens(self) -> list[int]:
        return list(self._prompt_tokens)

    @property
    def remaining_tokens(self) -> list[int]:
        return self._prompt_tokens[self.cached_tokens : self._prompt_length]

    @property
    def captures(self) -> bool:
        """True when something is lost without `checkpoint`: windows or recurrent state."""
        return self._layout is not None and not self._scope.trims

    @property
    def snapshot_positions(self) -> tuple[int, ...]:
        """Token counts at which `checkpoint` will keep windows and recurrent state."""
        committer = self._committer
        return () if committer is None else tuple(committer.stops)

    @uninterrupted
    def want_snapshots(self, positions: Iterable[int]) -> None:
        """Ask, before the prefill, for restore points at more token counts: the ends of a chat's
        parts, say. Without effect for models that can be restored anywhere."""
        flight, committer = self._flight, self._committer
        try:
            first, end = self.cached_tokens + 1, self._prompt_length
            wanted = [position for position in map(index, positions) if first <= position < end]
        except TypeError:
            return self._arguments.ignore("positions", positions, TOKENS)
        if committer is None or not self.captures:
            return
        committer.want(wanted)
        if flight is not None:
            flight.add_stops(wanted)

    @uninterrupted
    def wanted_stops(self) -> list[int]:
        """Return token counts at which requests that wait for this one part from it. `next_stop`
        asks by itself. A batch stops there if it can, and calls `checkpoint`."""
        flight, committer = self._flight, self._committer
        if flight is None or committer is None:
            return []
        ahead = range(self._fed + 1, self._prompt_length)
        wanted = list(filter(ahead.__contains__, flight.take_wanted()))
        if wanted:
            committer.want(wanted)
        return wanted

    @uninterrupted
    def reach(self, position: int) -> None:
        """Note that `position` tokens were computed, and offered to the tiers: requests that wait
        for them look again. `checkpoint` does this by itself."""
        position = self._arguments.known("position", position, is_whole, 0, TOKENS)
        flight, committer = self._flight, self._committer
        if flight is None or committer is None:
            return
        flight.reach(position, refused=committer.chain.block_start(position + 1) > committer.done)
        if position >= self._prompt_length - 1:
            # The last token of a prompt is fed with its answer.
            self._end_flight()

    @uninterrupted
    def take_cache(self) -> list[Any]:
        """Give the prompt cache away and release it, for a batch that copies it: from then on
        `checkpoint` and `commit` need the `prompt_cache` extracted from the batch."""
        taken, self.prompt_cache = self.prompt_cache, []
        if self._layout is not None:
            self._layout = self._scope.blank
            self._progress = None
        return taken

    def next_stop(self, step: int = 2048) -> int:
        """Return how many tokens the next prefill chunk should have, 0 when the prompt is done:
        feed so many, then call `checkpoint`. For a scheduler with a loop of its own. Raises
        ValueError for a step that is no integer of at least 1."""
        if not is_whole(step) or step < 1:
            raise ValueError(f"step must be an integer of at least 1, got {step!r}")
        self._fed = self._reached()
        if self._fed >= self._prompt_length:
            return 0
        self.wanted_stops()
        stop = min(self._fed + int(step), self._prompt_length)
        # Recurrent state is of one position.
        splits = self.snapshot_positions if STATE in self._scope.groups else ()
        self._planned = min([stop, *splits[bisect(splits, self._fed) :]])
        self.asked.begin_chunk(self._fed)
        return self._planned - self._fed

    def _reached(self) -> int:
        if self._progress is not None:
            live = self._progress.seen(self._planned)
        else:
            offsets = [getattr(cache, "offset", None) for cache in self.prompt_cache]
            live = max((offset for offset in offsets if is_whole(offset)), default=0)
        # A cache that is further was fed something else.
        return max(self._fed, min(live, self._planned))

    def prefill_chunks(self, step: int = 2048) -> Iterator[list[int]]:
        """Yield the prompt's remaining tokens in chunks of at most `step`.

        Chunks end where recurrent state needs a snapshot. When the loop asks for the next chunk,
        that is taken, and new blocks are stored, which computes them. A new iterator goes on
        where the last one was left.
        """
        if self._reached() > self._fed:
            self.checkpoint()
        while count := self.next_stop(step):
            stop = self._fed + count
            yield self._prompt_tokens[self._fed : stop]
            with uninterrupted:
                self.checkpoint(stop)

    @uninterrupted
    def checkpoint(
        self,
        position: int | None = None,
        prompt_cache: Sequence[Any] | None = None,
        *,
        row: Source | None = None,
    ) -> None:
        """Store the complete blocks, and the pages that would not last: windows, and recurrent
        state at a wanted position.

        Call it when `position` tokens (default: as the cache says, else what `next_stop` asked for)
        have been fed. Evaluates its copies; waits for nothing. Skips, counted, when the cache is
        elsewhere. `row` has the growing caches' tokens from `stored` on, for a batch whose
        extracted caches are costly to read.
        """
        told = position = self._arguments.known("position", position, is_whole, None, TOKENS)
        self._due_at = 0  # The code below moves it.
        layout = self._live_layout(prompt_cache)
        committer = None if self._unknown else self._committer
        before = self._fed
        # Where the cache did not move: a loop that feeds another cache must end too.
        self._fed = max(before, self._planned if told is None else told)
        if layout is None or committer is None:
            if committer is not None:
                self._counters.skip(reasons.LAYOUT_CHANGED)
        else:
            own = self._progress if layout is self._layout else None
            try:
                actual = layout.position()
                if position is None:
                    position = actual or self._planned
                if told is not None or position <= self._prompt_length:
                    actual = actual if own is None else own.reached(position)
                    if actual is not None and actual != position:
                        position = actual
                        self._counters.skip(reasons.POSITION)
                if before < position < self._fed or (told is None and position >= max(before, 1)):
                    self._fed = position
                recorded = len(self._catch_up(committer))
                extent = LiveExtent(position, True).within(recorded)
                known = extent if own is None else own.agreed()
                if known is not None:
                    committer.advance(layout, known, row)
            except UnsupportedCache as error:
                self._counters.skip(reasons.word(unsupported(error)))
            except Exception as error:
                self._scope.log_failure("checkpoint failed, the positions are skipped", error)
                self._counters.skip(reasons.ERROR)
        self.asked.end_chunk(self._planned if told is None else told)
        self._planned = min(self._planned, self._fed)
        self.reach(self._fed)

    @property
    def stored(self) -> int:
        """The boundary up to which complete blocks were stored, or refused."""
        committer = self._committer
        return 0 if committer is None else committer.done

    @uninterrupted
    def store_row(self, row: Source | None, position: int) -> None:
        """Store the complete blocks of a batch's row; `row` has its tokens from `stored` on. None
        is counted as not held."""
        committer = self._committer
        if committer is None or self._unknown:
            return
        end = self._arguments.known("position", position, is_whole, 0, TOKENS)
        if row is None:
            return self._counters.skip(reasons.NOT_HELD)
        try:
            recorded = len(self._catch_up(committer))
            if end > recorded:
                self._arguments.say(
                    "store_row",
                    f"store_row({end}) with {recorded} known tokens: append them before",
                )
            committer.store_blocks(row, min(end, recorded))
        except Exception as error:
            self._scope.log_failure("blocks of a batch are not stored before the end", error)
            self._counters.skip(reasons.ERROR)

    def append(self, token: int) -> None:
        """Record one token that was generated and fed to the model, as `extend`."""
        recorded = len(self._prompt_tokens) + 1
        if recorded >= self._due_at or type(token) is not int or token not in INT64:
            self.extend([token])
            return
        # Each step leaves a good state: handlers need not wait, which would take most of the time.
        self._prompt_tokens.append(token)
        if self._progress is not None and not self._progress.follow(recorded):
            self._recorded(recorded - 1)

    @uninterrupted
    def extend(self, tokens: Sequence[int]) -> None:
        """Record tokens that were generated and fed to the model.

        Exactly those: a `BatchGenerator` has fed the last sampled token too, a plain loop has not.
        Where a block ends it is stored, which evaluates MLX. A token that is no integer is ignored,
        and so are those behind it: their keys depend on it.
        """
        committer = self._committer
        if committer is None:
            return self._note_end("append")
        new: list[Any] = []
        try:
            new = listed(tokens)
            array = as_tokens(new)
        except (ValueError, TypeError, OverflowError):
            self._arguments.ignore("tokens", kinds_of(tokens), INTEGERS)
            self.extend(list(takewhile(lambda one: is_whole(one) and int(one) in INT64, new)))
            before = len(self._prompt_tokens)
            if not self._unknown and self._progress is not None:
                self._progress.recorded(before, before + 1)
            self._unknown, self._due_at = 1, 0
            self._end_flight()
        if self._unknown or not new:
            return
        before = len(self._prompt_tokens)
        self._catch_up(committer).extend(array)
        self._prompt_tokens += array.tolist()
        self._recorded(before)
        # An answer follows a prompt that was computed, whether its loop said so or not.
        self._end_flight()

    @uninterrupted
    def _recorded(self, before: int) -> None:
        after, committer = len(self._prompt_tokens), self._committer
        if self._progress is None or committer is None:
            self._due_at = sys.maxsize
            return
        if after > before + 1 or not self._progress.follow(after):
            self._progress.recorded(before, after)
        due = after >= committer.due_at(before)
        if due and self._layout is not None and self._layout.is_used():
            self.checkpoint()
        self._due_at = committer.due_at(after)

    def _catch_up(self, committer: Committer) -> KeyChain:
        chain = committer.chain
        if len(chain) < len(self._prompt_tokens):
            chain.extend(as_tokens(self._prompt_tokens[len(chain) :]))
        return chain

    @uninterrupted
    def commit(
        self,
        prompt_cache: Sequence[Any] | None = None,
        *,
        release: bool = False,
        ended: str | None = None,
    ) -> CommitResult:
        """Hand the remaining blocks to the tiers and return the result of all stores.

        Copies on this thread; another writes to the disk. When memory has no room left, this waits
        for that as long as the settings allow. `prompt_cache` is one extracted from a batch; with
        `release` it is consumed, as is the session's own. `ended` is a hint, how the answer ended
        (`Ended`): after a "turn" any new page may evict these; after a "tool_call", or without a
        hint, they stay as long as the store has learned. A second commit, or one after `abort`,
        stores nothing.
        """
        if self._pid != os.getpid():
            return CommitResult.none(reasons.STORE_CLOSED)
        if self._finalizer.alive:
            self._is_left = True
            known: Ended | None = self._arguments.known("ended", ended, is_ended, None, ENDED)
            self.asked.how_ended = known or ""
            result = self._scope.counted(partial(self._commit, prompt_cache, known))
            self.reach(result.tokens)
        else:
            result = CommitResult.none(reasons.CLOSED)
            self._note_end("commit")
        if release:
            if isinstance(prompt_cache, list):
                prompt_cache.clear()
            self.prompt_cache = []
        self.abort()
        return result

    def _commit(self, prompt_cache: Sequence[Any] | None, ended: Ended | None) -> CommitResult:
        layout, committer = self._live_layout(prompt_cache), self._committer
        if committer is None:
            return CommitResult.none(reasons.word(self.miss_reason or reasons.ERROR))
        if layout is None:
            return CommitResult.none(reasons.LAYOUT_CHANGED)
        if self._scope.store.closed:
            return CommitResult.none(reasons.STORE_CLOSED)
        own = self._progress if layout is self._layout else None
        recorded = len(self._catch_up(committer))
        known = recorded + self._unknown
        extent = extent_of(layout, known) if own is None else own.extent(known)
        if extent.end == self.cached_tokens < self._fed:
            # What was computed is in another cache.
            extent = extent._replace(exact=False)
        result = self._scope.finish(committer, layout, extent.within(recorded), ended)
        if reasons.POSITION in result.skipped:
            live = layout.position() if own is None else own.seen(known)
            self._arguments.say(
                reasons.POSITION,
                f"the cache is at {live}, the session's tokens end at {known}: "
                + (
                    "pass commit(prompt_cache=extracted) after take_cache"
                    if layout is self._scope.blank
                    else "feed the session's prompt_cache, and give extend exactly the tokens that "
                    "were fed"
                ),
            )
        if self._unknown:
            result = result._replace(skipped={**result.skipped, reasons.BAD_TOKENS: 1})
        return result

    def _live_layout(self, prompt_cache: Sequence[Any] | None) -> Layout | None:
        if self._layout is None or prompt_cache is None or prompt_cache is self.prompt_cache:
            return self._layout
        return self._scope.layout(prompt_cache)

    def _note_end(self, call: str) -> None:
        if not self._finalizer.alive:
            if self._is_left:
                self._arguments.say("end", f"{call} after the session's end: nothing is stored")
            self.miss_reason = reasons.CLOSED
            self._counters.skip(reasons.CLOSED)

    def _end_flight(self) -> None:
        flight, self._flight = self._flight, None
        if flight is not None:
            flight.end()

    @uninterrupted
    def abort(self) -> None:
        """Free all that the session holds; from any thread, any number of times."""
        self._committer = None
        if self._pid != os.getpid():
            # Its locks guard the parent's objects.
            return
        self._end_flight()
        self._due_at = 0
        if self._finalizer.detach() is not None:
            self.asked.ended(len(self._prompt_tokens) - self._prompt_length)
            self._staging.release()

    def evaluate(self) -> None:
        """Evaluate the live cache and no logits: after a chunk of which no block is stored."""
        evaluate([cache.state for cache in self.prompt_cache])


def _lose(staging: Staging, asked: AskedRequest) -> None:
    """End what a lost session was for."""
    asked.ended(0)
    staging.release()
