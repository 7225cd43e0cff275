"""Session: one request's hold on the cache, from look-up to commit."""

import logging
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from omlx_cache import reasons
from omlx_cache.adapters.base import UnsupportedCache
from omlx_cache.arrays.mlxio import evaluate
from omlx_cache.commit.capturing import Capturer
from omlx_cache.commit.committer import Committer
from omlx_cache.commit.progress import Progress, extent_of
from omlx_cache.commit.staging import Staging
from omlx_cache.identity.namespace import Namespace
from omlx_cache.pages.layout import Layout, layout_of
from omlx_cache.restore.run import restore, unsupported
from omlx_cache.results import CommitResult
from omlx_cache_storage.keys import KeyChain, as_tokens

if TYPE_CHECKING:
    from omlx_cache.prefix import PrefixCache

_log = logging.getLogger(__name__)

DEFAULT_NEW_TOKENS = 256
MAX_NEW_TOKENS = 65_536
"""Room beyond this is not allocated ahead: "no limit" must not take all memory at once."""


class Session:
    """Restores on construction; captures during prefill and decode; stores on `commit`.

    Use it as a context manager, on the thread that runs the model; only `abort` may come from
    another. No method raises for what the cache, the disk or an unsupported model does: that is
    a miss, or a skipped page, with a reason. Leaving without commit frees all it captured.

    Attributes: `cached_tokens` (int, at most len(tokens) - 1), `miss_reason` (None, or why no more
    was restored), `prompt_cache` (the list for `model(..., cache=...)`).
    """

    def __init__(
        self,
        cache: "PrefixCache",
        tokens: Sequence[int],
        namespace: Namespace | None,
        *,
        fresh: Callable[[], list[Any]],
        max_new_tokens: int | None = DEFAULT_NEW_TOKENS,
    ) -> None:
        self._cache = cache
        self._fresh = fresh
        self._store = cache.store
        self._namespace = namespace
        self._counters = cache.store.counters
        self._staging = Staging(self._counters, cache.store.settings.snapshot_bytes)
        self._finished = False
        self.cached_tokens = 0
        self.cached_cold_tokens = 0
        self.miss_reason: str | None = None
        self.prompt_cache: list[Any] = fresh()
        self._layout: Layout | None = None
        self._chain: KeyChain | None = None
        self._prompt_tokens = _listed(tokens)
        self._prompt_length = len(self._prompt_tokens)
        self._stops: list[int] = []
        self._capturer: Capturer | None = None
        self._fed = self._planned = 0
        self._progress: Progress | None = None
        self._counters.add(sessions=1, live_sessions=1, asked_tokens=self._prompt_length)
        self._finalizer = weakref.finalize(self, _finish, self._staging, self._counters)
        try:
            self._begin(max_new_tokens)
        except Exception as error:
            self._give_up(error)
        if self.miss_reason is not None:
            self._counters.miss(reasons.word(self.miss_reason))

    def _begin(self, max_new_tokens: int | None) -> None:
        namespace = self._namespace
        try:
            array = as_tokens(self._prompt_tokens)
        except (ValueError, TypeError, OverflowError) as error:
            self.miss_reason = f"{reasons.BAD_TOKENS}:{error}"
            return
        if namespace is None:
            self.miss_reason = self._cache.unsupported_reason
            return
        settings = self._store.settings
        self._layout = layout_of(self.prompt_cache)
        self._chain = KeyChain(namespace.digest, array, settings.block_size, settings.key_hash)
        self._progress = Progress(self._layout, 0)
        self._capturer = Capturer(self._staging, self._counters, namespace, self._chain, 0)
        if self._prompt_length < 2:
            self.miss_reason = reasons.TOO_SHORT
            return
        began = time.perf_counter()
        known = self._cache.known_boundaries(self._chain)
        restored = restore(
            self._store,
            self._layout,
            self._chain,
            limit=self._prompt_length - 1,
            capacity=self._prompt_length + _room(max_new_tokens),
            known=known,
        )
        point = restored.point
        self.cached_tokens = self._fed = self._planned = point.position
        self.cached_cold_tokens = restored.cold_tokens
        self.miss_reason = point.reason
        self._capturer = Capturer(
            self._staging, self._counters, namespace, self._chain, point.position
        )
        self._progress = Progress(self._layout, point.position)
        if any(group.kind == "state" for group in self._layout.groups):
            self._stops = self._cache.policy.positions(
                start=point.position,
                stop=self._prompt_length,
                block_size=settings.block_size,
                branch=point.wanted_state,
            )
        self._count_restore(point.position, restored.cold_tokens, time.perf_counter() - began)

    def _count_restore(self, tokens: int, cold: int, seconds: float) -> None:
        self._counters.add(
            restored_tokens=tokens,
            restored_cold_tokens=cold,
            restored_hot_tokens=tokens - cold,
        )
        self._counters.add_seconds("restore", seconds)
        rate = self._counters.prefill_rate()
        if tokens and rate:
            self._counters.add_seconds("saved", tokens / rate - seconds)

    def _give_up(self, error: Exception) -> None:
        """Turn an unexpected error into a miss with a fresh cache."""
        if isinstance(error, UnsupportedCache):
            self.miss_reason = unsupported(error)
        else:
            _log.exception("restore failed, the request is computed in full")
            self.miss_reason = f"{reasons.ERROR}:{type(error).__name__}"
        self.cached_tokens = self.cached_cold_tokens = self._fed = self._planned = 0
        self._layout = None
        self._progress = None
        self.prompt_cache = self._fresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    @property
    def tokens(self) -> list[int]:
        """The prompt and what was appended."""
        return list(self._prompt_tokens)

    @property
    def remaining_tokens(self) -> list[int]:
        """The prompt's tokens that were not restored."""
        return self._prompt_tokens[self.cached_tokens : self._prompt_length]

    @property
    def captures(self) -> bool:
        """True when `checkpoint` has something to do: the model has windows or recurrent state."""
        return self._layout is not None and any(g.kind != "paged" for g in self._layout.groups)

    @property
    def snapshot_positions(self) -> tuple[int, ...]:
        """Token counts at which `checkpoint` will capture recurrent state, ascending."""
        return tuple(self._stops)

    def want_snapshots(self, positions: Iterable[int]) -> None:
        """Ask for recurrent state at more token counts, the ends of a chat's parts, say.

        To be called before the prefill; without effect for models that have no such state.
        """
        if self._layout is not None and any(g.kind == "state" for g in self._layout.groups):
            inside = {p for p in positions if self.cached_tokens < p < self._prompt_length}
            self._stops = sorted({*self._stops, *inside})

    def take_cache(self) -> list[Any]:
        """Give the prompt cache away and let go of it, for a batch that copies it.

        From then on `checkpoint` and `commit` need the `prompt_cache` extracted from the batch.
        """
        taken, self.prompt_cache = self.prompt_cache, []
        if self._layout is not None:
            self._layout = layout_of(self._fresh())
            self._progress = None
        return taken

    def next_stop(self, step: int = 2048) -> int:
        """Return how many tokens the next prefill chunk should have, 0 when the prompt is done.

        For a scheduler with a loop of its own: feed so many, then call `checkpoint`.
        """
        if self._fed >= self._prompt_length:
            return 0
        stop = min(self._fed + max(1, step), self._prompt_length)
        self._planned = min([s for s in self._stops if self._fed < s < stop], default=stop)
        return self._planned - self._fed

    def prefill_chunks(self, step: int = 2048) -> Iterator[list[int]]:
        """Yield the prompt's remaining tokens in chunks of at most `step`.

        Chunks end where the layer groups need a snapshot or a window captured; that is done, and
        MLX evaluated for it, when the loop asks for the next chunk.
        """
        while count := self.next_stop(step):
            began = time.perf_counter()
            stop = self._fed + count
            yield self._prompt_tokens[self._fed : stop]
            self.checkpoint(stop)
            # Whatever the cache says: a loop that feeds another cache must end too.
            self._fed = stop
            self._counters.add(prefilled_tokens=count)
            self._counters.add_seconds("prefill", time.perf_counter() - began)

    def checkpoint(
        self, position: int | None = None, prompt_cache: Sequence[Any] | None = None
    ) -> None:
        """Capture what would not last: window tokens, and recurrent state at a wanted position.

        Call it when `position` tokens (default: as the cache says, else what `next_stop` asked
        for) have been fed. Evaluates the arrays it copies. Skips, counted, when the cache is
        elsewhere.
        """
        layout = self._live_layout(prompt_cache)
        if layout is None or self._chain is None or self._finished:
            self._fed = position if position is not None else self._fed
            return
        try:
            actual = self._where(layout, position)
            self._fed = actual
            if self._capturer is not None:
                self._capturer.capture(layout, actual, self._stops)
        except UnsupportedCache as error:
            self._counters.skip(reasons.word(unsupported(error)))
        except Exception:
            _log.exception("checkpoint failed, the positions are skipped")
            self._counters.skip(reasons.ERROR)

    def _where(self, layout: Layout, position: int | None) -> int:
        """Return where the live cache is; counts it when that is not `position`."""
        actual = layout.position()
        if position is None:
            position = self._planned if actual is None else actual
            if position > self._prompt_length:
                return position
        if layout is self._layout and self._progress is not None:
            actual = self._progress.reached(position)
        if actual is None or actual == position:
            return position
        self._counters.skip(reasons.POSITION)
        return actual

    def append(self, token: int) -> None:
        """Record one token that was generated and fed to the model."""
        self.extend([token])

    def extend(self, tokens: Sequence[int]) -> None:
        """Record tokens that were generated and fed to the model.

        Now and then it captures window tokens before the ring overwrites them, which evaluates MLX.
        """
        if self._chain is None or self._finished:
            return
        listed = _listed(tokens)
        try:
            self._chain.extend(as_tokens(listed))
        except (ValueError, TypeError, OverflowError) as error:
            self._counters.skip(reasons.BAD_TOKENS)
            self.miss_reason = f"{reasons.BAD_TOKENS}:{error}"
            self._chain = None
            return
        before = len(self._prompt_tokens)
        self._prompt_tokens += listed
        if self._progress is not None:
            self._progress.recorded(before, len(self._prompt_tokens))
        if self._layout is None or self._capturer is None:
            return
        if self._capturer.due(self._layout):
            self.checkpoint()

    def commit(
        self, prompt_cache: Sequence[Any] | None = None, *, release: bool = False
    ) -> CommitResult:
        """Hand the new blocks to the tiers and return what was stored.

        Copies on this thread and returns; the disk is written behind its back. `prompt_cache` is
        one extracted from a batch; with `release` it is consumed, as is the session's own. A
        second commit, or one after `abort`, stores nothing.
        """
        began = time.perf_counter()
        result = CommitResult(0, 0, 0, 0, {reasons.CLOSED: 1})
        if not self._finished and not self._staging.closed:
            result = self._commit(prompt_cache)
            self._counters.commit(result.skipped)
        if release:
            if isinstance(prompt_cache, list):
                prompt_cache.clear()
            self.prompt_cache = []
        self._close()
        self._counters.add_seconds("commit", time.perf_counter() - began)
        return result

    def _commit(self, prompt_cache: Sequence[Any] | None) -> CommitResult:
        layout = self._live_layout(prompt_cache)
        if self._chain is None or self._namespace is None:
            return CommitResult(0, 0, 0, 0, {reasons.word(self.miss_reason or reasons.ERROR): 1})
        if layout is None:
            return CommitResult(0, 0, 0, 0, {reasons.LAYOUT_CHANGED: 1})
        try:
            committer = Committer(
                self._store,
                self._namespace,
                self._chain,
                layout,
                self._staging,
                self._cache.codec_policy,
            )
            recorded = len(self._chain)
            own = self._progress if layout is self._layout else None
            extent = extent_of(layout, recorded) if own is None else own.extent(recorded)
            result = committer.run(self._prompt_length, extent)
            self._cache.remember(self._chain, result.tokens)
            return result
        except UnsupportedCache as error:
            return CommitResult(0, 0, 0, 0, {reasons.word(unsupported(error)): 1})
        except Exception:
            _log.exception("commit failed, nothing more is stored")
            return CommitResult(0, 0, 0, 0, {reasons.ERROR: 1})

    def _live_layout(self, prompt_cache: Sequence[Any] | None) -> Layout | None:
        """Return the layout of the live cache, None when it is not the session's kind."""
        if self._layout is None or prompt_cache is None or prompt_cache is self.prompt_cache:
            return self._layout
        try:
            layout = layout_of(prompt_cache)
        except UnsupportedCache as error:
            self._counters.skip(reasons.word(unsupported(error)))
            return None
        if layout.signature != self._layout.signature:
            self._counters.skip(reasons.LAYOUT_CHANGED)
            return None
        return layout

    def abort(self) -> None:
        """Free all that the session captured; safe from any thread, any number of times."""
        self._close()

    def _close(self) -> None:
        self._finished = True
        self._finalizer()

    def evaluate(self) -> None:
        """Evaluate the live cache now; for loops that leave arrays lazy."""
        if self._layout is not None:
            evaluate([a for leaf in self._layout.leaves for a in leaf.arrays().values()])


def _finish(staging: Staging, counters: Any) -> None:
    staging.release()
    counters.add(live_sessions=-1)


def _room(max_new_tokens: Any) -> int:
    """Return the tokens to make room for: a whole number within limits, else the default."""
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int):
        return DEFAULT_NEW_TOKENS
    return min(max(0, max_new_tokens), MAX_NEW_TOKENS)


def _listed(tokens: Any) -> list[Any]:
    """Return tokens of any kind of sequence as a list; what is no sequence, as one bad token."""
    plain = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    try:
        return list(plain)
    except TypeError:
        return [plain]
