"""mlx-lm's BatchGenerator, whose rows are stored while they are computed."""

import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import WeakSet

import mlx_lm.server

from omlx_cache.flights import PromptFlight
from omlx_cache.integrations.mlx_lm.following import Following
from omlx_cache.integrations.mlx_lm.server.flying import RowFlights
from omlx_cache.integrations.mlx_lm.server.recovering import RecoveringBatchGenerator
from omlx_cache.integrations.mlx_lm.server.replies import Reply
from omlx_cache.integrations.rows import BatchTimer, row_of
from omlx_cache.requests.log import AskedRequest


class Follows(Protocol):
    """Who begins to follow a sequence: the prompt cache, for the model that is loaded."""

    def follow(self, tokens: Sequence[int], start: int) -> Following | None: ...

    def fly(
        self, tokens: Sequence[int], start: int, stops: Sequence[int]
    ) -> PromptFlight | None: ...

    def refetch(self, tokens: list[int]) -> tuple[list[Any] | None, list[int]]: ...

    def ending(self, rows: Sequence[tuple[list[Any], Reply]]) -> None: ...


class StoringBatchGenerator(RecoveringBatchGenerator):
    """Stores each request's blocks after each step, as far as the tiers take them at once, and
    tells those who wait for them.

    Mutable by the generation thread: `_followed` by uid, and the flights.
    """

    def __init__(self, *args: Any, follows: Follows, **options: Any) -> None:
        self._follows = follows
        self._followed: dict[int, Following | None] = {}
        self._timer = BatchTimer(self._asked)
        self._flights = RowFlights(follows.fly)
        super().__init__(*args, restore=follows.refetch, **options)

    def insert_segments(self, segments: Any, *args: Any, **options: Any) -> Any:
        uids = super().insert_segments(segments, *args, **options)
        for uid in uids:
            self._flights.begin(uid, self._jobs[uid].held, self._jobs[uid].segments)
        return uids

    def next(self) -> tuple[list[Any], list[Any]]:
        self._flights.stop_where_wanted(self)
        began = time.perf_counter()
        prompts, generated = super().next()
        self._timer.step(prompts, time.perf_counter() - began)
        for response in prompts:
            if response.end_of_prompt:
                self._flights.end(response.uid)
            else:
                self._store_prompt(response)
        for response in generated:
            if response.finish_reason is None:
                self._store(response.uid)
            else:
                self._forget(response.uid)
        self._flights.end_all(but=self._jobs)
        return prompts, generated

    def _note(self, prompts: Sequence[Any], generated: Sequence[Any]) -> None:
        # The server sends the last of an answer to its reply, and stores it next.
        jobs = [(r, self._jobs.get(r.uid)) for r in generated if r.finish_reason is not None]
        self._follows.ending(
            [(r.prompt_cache, job.reply) for r, job in jobs if job is not None and job.reply]
        )
        super()._note(prompts, generated)

    def _asked(self, uid: Any) -> AskedRequest | None:
        job = self._jobs.get(uid)
        found = None if job is None or job.reply is None else job.reply.fetched
        return None if found is None else found.asked

    def _dropped(self, uids: Sequence[int]) -> None:
        for uid in uids:
            self._forget(uid)

    def remove(self, uids: Sequence[int], *args: Any, **options: Any) -> Any:
        for uid in uids:
            self._forget(uid)
            self._flights.end(uid)
        return super().remove(uids, *args, **options)

    def close(self) -> None:
        for uid in list(self._followed):
            self._forget(uid)
        self.land()
        super().close()

    def land(self) -> None:
        """Say that no more of any prompt is computed."""
        self._flights.end_all()

    def _store_prompt(self, response: Any) -> None:
        row = row_of(self, response.uid)
        if row is None:
            return
        position = len(row.tokens)
        stopped = self._flights.is_stop(response.uid, position)
        self._store(response.uid, keep=stopped)
        if stopped:
            # What mlx-lm does at the end of a segment it does with that segment's type.
            response.end_of_segment = False
        self._flights.reach(response.uid, position)

    def _store(self, uid: int, *, keep: bool = False) -> None:
        row = row_of(self, uid)
        if row is None:
            return
        if uid not in self._followed:
            self._followed[uid] = self._follows.follow(row.tokens, 0)
        following = self._followed[uid]
        if following is not None:
            following.row(row, lambda: self.extract_cache([uid])[uid][0], keep=keep)

    def _forget(self, uid: int) -> None:
        self._timer.forget(uid)
        following = self._followed.pop(uid, None)
        if following is not None:
            following.close()


@contextmanager
def storing_batches(follows: Follows, reply: Callable[[], Reply | None]) -> Any:
    """Have mlx-lm's server make its batches so while the block runs: it names the class itself,
    so that no argument reaches it. `reply` gives the one to the request that is inserted."""
    upstream: Callable[..., Any] = mlx_lm.server.BatchGenerator
    made: WeakSet[StoringBatchGenerator] = WeakSet()

    def make(*args: Any, **options: Any) -> StoringBatchGenerator:
        generator = StoringBatchGenerator(*args, follows=follows, reply=reply, **options)
        made.add(generator)
        return generator

    mlx_lm.server.BatchGenerator = make
    try:
        yield
    finally:
        mlx_lm.server.BatchGenerator = upstream
        for generator in made:
            generator.land()
