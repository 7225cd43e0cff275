"""mlx-lm's ResponseGenerator, with a measurement and a log line for each request."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from mlx_lm.server import ModelProvider, Response

from omlx_cache.flights import PromptFlight
from omlx_cache.integrations.mlx_lm.fetched import Fetched
from omlx_cache.integrations.mlx_lm.following import Following
from omlx_cache.integrations.mlx_lm.prompt_cache import TieredPromptCache
from omlx_cache.integrations.mlx_lm.server.batches import storing_batches
from omlx_cache.integrations.mlx_lm.server.decoding import TokenDecoder
from omlx_cache.integrations.mlx_lm.server.limits import Limits
from omlx_cache.integrations.mlx_lm.server.looking import Ahead, PromptLookup
from omlx_cache.integrations.mlx_lm.server.refusals import Unavailable
from omlx_cache.integrations.mlx_lm.server.replies import Reply
from omlx_cache.integrations.mlx_lm.server.request_line import (
    CLIENT_LEFT,
    CUT_OFF,
    FAILED,
    Ended,
    request_line,
    waiting_line,
)
from omlx_cache.integrations.mlx_lm.server.sharing import SharingResponseGenerator
from omlx_cache.requests.log import AskedRequest
from omlx_cache.store import BlockStore

_log = logging.getLogger(__name__)


class ServerPromptCache(TieredPromptCache):
    """Also keeps a prompt's prefix while it is prefilled, and what its fetches found.

    mlx-lm's server inserts a sequence where a part of it ends. In a batch `follow` is asked for
    what stores it meanwhile. Served one at a time, `lending` says so, and `prefilled` is called
    after each chunk, by the same thread. `fetched` is told of each fetch for a client. `ending` is
    told whose answers end: how they do is known when they are stored.
    """

    insert_ends_request = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fetched: Callable[[Fetched], None] = lambda found: None
        self._lent: _Lent | None = None
        self._lending = False
        self._ending: dict[int, Reply] = {}
        self._alone: Reply | None = None
        self._key: Any = None

    @contextmanager
    def lending(self, reply: Reply | None = None) -> Iterator[None]:
        """Keep hold of the caches that are fetched in this block, for a reply, and let go of them
        after it."""
        self._lending = True
        self._alone = reply
        try:
            yield
        finally:
            self._lending = False
            self._alone = None
            if self._lent is not None:
                for following in self._lent.followed:
                    following.close()
            self._lent = None

    def follow(self, tokens: Sequence[int], start: int) -> Following | None:
        """Return what stores a sequence of the model that was asked for last, while it grows."""
        found = self.followers(self._key, tokens, start)
        return found[0] if len(found) == 1 else None

    def fly(self, tokens: Sequence[int], start: int, stops: Sequence[int]) -> PromptFlight | None:
        """Note a prompt for the model that was asked for last: it is about to be computed."""
        return self.flight(self._key, tokens, start, stops)

    def fetch_nearest_cache(self, model: Any, tokens: Any) -> tuple[list[Any] | None, list[int]]:
        self._key = model
        caches, rest = super().fetch_nearest_cache(model, tokens)
        if self.last is not None:
            self.fetched(self.last)
        if self._lending and (fresh := self.fresh(model)):
            start = len(tokens) - len(rest)
            caches = fresh if caches is None else caches
            followed = self.followers(model, tokens[:start], start)
            self._lent = _Lent(list(tokens), caches, start, followed)
        return caches, rest

    def ending(self, rows: Sequence[tuple[list[Any], Reply]]) -> None:
        """Note whose answers are in these caches, which are stored before anything else is said."""
        self._ending = {id(caches): reply for caches, reply in rows}

    def insert_cache(self, model: Any, tokens: Any, prompt_cache: Any, **options: Any) -> None:
        reply = self._alone or self._ending.pop(id(prompt_cache), None)
        if reply is not None and reply.ended is not None:
            options.setdefault("ended", reply.ended)
        super().insert_cache(model, tokens, prompt_cache, **options)

    def refetch(self, tokens: list[int]) -> tuple[list[Any] | None, list[int]]:
        """Return what is kept of a sequence that is computed again after an error."""
        found = super().fetch_nearest_cache(self._key, tokens)
        if self.last is not None:
            self.last.asked.ended(0)
        return found

    def prefilled(self, count: int) -> None:
        """Store what the lent caches hold, now that `count` tokens were fed to them."""
        lent = self._lent
        if lent is None or not 0 < count < len(lent.tokens) - lent.start:
            return
        prefix = lent.tokens[: lent.start + count]
        first = 0
        for following in lent.followed:
            size = len(lent.caches) if len(lent.followed) == 1 else following.layers
            own = lent.caches[first : first + size]
            following.caches(prefix, own, keep=len(prefix) == len(lent.tokens) - 1)
            first += size

    def room_for(self, count: int) -> str:
        """Return in words what the budgets do not hold of so many tokens of the model that was
        asked for last; empty when they hold all."""
        fit = self.fit(self._key)
        block = self._store.settings.block_size
        if fit is None or count // block * block <= fit.tokens:
            return ""
        if fit.in_memory > fit.tokens and count // block * block <= fit.in_memory:
            return f", {count - fit.tokens} not on the disk (no_room: {fit.setting})"
        kept = max(fit.tokens, fit.in_memory)
        return f", {count - kept} not kept (no_room: {fit.setting})"


class _Lent(NamedTuple):
    """Caches that the server feeds: they hold the first `start` of the tokens, at first."""

    tokens: list[int]
    caches: list[Any]
    start: int
    followed: Sequence[Following]


class _Progress:
    """The response queue of a request served alone; tells of prefill progress as it passes, and of
    tokens of the answer. Ends the request with Unavailable when `cut` says so, which mlx-lm would
    not."""

    def __init__(
        self,
        responses: Any,
        prefilled: Callable[[int], None],
        begun: Callable[[], None],
        cut: Callable[[], bool],
    ) -> None:
        self._responses = responses
        self._prefilled = prefilled
        self._begun = begun
        self._cut = cut

    def put(self, item: Any) -> None:
        if self._cut() and not isinstance(item, Exception):
            raise Unavailable("the server is ending")
        if isinstance(item, tuple):
            self._prefilled(item[0])
        elif isinstance(item, Response):
            self._begun()
        self._responses.put(item)


class MeasuredResponseGenerator(SharingResponseGenerator):
    """Logs each request when its last token is out, or when its client has gone.

    What is computed of a prompt is measured by the thread that computes it: here for those that
    are served alone, by the batch for all others. The time to the first token would count what
    others compute, again for each that waits.
    """

    def __init__(
        self, provider: ModelProvider, cache: ServerPromptCache, store: BlockStore, limits: Limits
    ) -> None:
        self._store = store
        store.decoder = TokenDecoder(provider)
        self._measured = cache
        cache.fetched = self._note_fetched
        # So that the first request does not wait for what is done once for each model.
        provider.prepare = lambda: cache.fresh(provider.model_key)
        self._computed: AskedRequest | None = None
        self.lookup = PromptLookup(store, self, cache)
        self._ahead = Ahead(store, self, cache)
        super().__init__(provider, cache, store, limits)

    def _note_fetched(self, found: Fetched) -> None:
        if self.asked is not None:
            self.asked.fetched = found
            found.asked.arrived(self.asked.arrived)
            if self.asked.held_seconds:
                found.asked.waited(self.asked.held_seconds)
        self._computed = found.asked
        self._computed.begin_chunk(found.restored_tokens)

    def _compute(self) -> None:
        with storing_batches(self._measured, lambda: self.asked):
            super()._compute()

    def _serve_single(self, request: Any, *stream: Any) -> None:
        responses, *rest = request
        with self._measured.lending(responses):
            watched = _Progress(responses, self._prefilled, self._begun, lambda: self.cutting)
            super()._serve_single((watched, *rest), *stream)

    def _prefilled(self, count: int) -> None:
        found = None if self.asked is None else self.asked.fetched
        if found is None or self._computed is None:
            return
        position = found.restored_tokens + count
        self._computed.end_chunk(position)
        self._measured.prefilled(count)
        self._computed.begin_chunk(position)

    def _begun(self) -> None:
        """The answer has begun: all of the prompt is computed. Without a word of progress before
        it, as with a draft model, that counts from the fetch."""
        if self._computed is not None:
            self._computed.end_chunk()

    def arriving(self, request: Any, generation_args: Any) -> None:
        self._ahead(request, generation_args)

    def generate(
        self,
        request: Any,
        generation_args: Any,
        progress_callback: Callable[[int, int], None] | None = None,
    ) -> tuple[Any, Iterator[Any]]:
        context, responses = super().generate(request, generation_args, progress_callback)
        return context, self._measure(context, responses)

    def _measure(self, context: Any, responses: Iterator[Any]) -> Iterator[Any]:
        first: float | None = None
        count = 0
        early = FAILED
        try:
            for response in responses:
                if first is None:
                    first = time.perf_counter() - context.reply.arrived
                count += 1
                if response.finish_reason is not None:
                    early = ""
                yield response
            early = ""
        except Unavailable:
            early = CUT_OFF
            raise
        except (GeneratorExit, ConnectionError, TimeoutError):
            early = CLIENT_LEFT if early else ""
            raise
        finally:
            seconds = time.perf_counter() - context.reply.arrived
            self._report(context, Ended(count, first, seconds, early))

    def _report(self, context: Any, ended: Ended) -> None:
        found = context.reply.fetched
        if found is None:
            _log.info("%s", waiting_line(len(context.prompt), ended))
            return
        found.asked.ended(ended.out)
        record, told = found.asked.record, found.asked.explanation
        if record.total_seconds is not None:
            ended = ended._replace(seconds=record.total_seconds)
        notes = self._measured.room_for(record.prompt_tokens + ended.out)
        line = request_line(record, told, ended, notes + _waited(record.held_seconds))
        _log.info("%s", line)


def _waited(seconds: float) -> str:
    return f", held {seconds:.1f} s for another request" if seconds else ""
