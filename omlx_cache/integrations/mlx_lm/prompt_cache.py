"""TieredPromptCache: what mlx-lm's server calls, kept in tiers and shared between prompts."""

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from omlx_cache import reasons
from omlx_cache.adapters.base import UnsupportedCache
from omlx_cache.arrays.mlxio import check_packing
from omlx_cache.flights import PromptFlight
from omlx_cache.identity.namespace import NOWHERE
from omlx_cache.integrations.lanes import (
    QUANTIZED_KV_START,
    Along,
    Bits,
    Lane,
    lane_of,
    nearest,
    packed_as,
    restored_from,
)
from omlx_cache.integrations.mlx_lm.following import Following
from omlx_cache.integrations.mlx_lm.models import (
    ModelCaches,
    ModelSource,
    caches_of,
    unknown_model,
)
from omlx_cache.preparation import Preparation
from omlx_cache.requests.log import AskedRequest
from omlx_cache.restore.pending import Restored, missed
from omlx_cache.settings import CacheSettings
from omlx_cache.store import BlockStore
from omlx_cache_storage.calls import uninterrupted
from omlx_cache_storage.eviction.order import ENDED, Ended, is_ended
from omlx_cache_storage.keys import KeyChain, Tokens, as_tokens
from omlx_cache_storage.page import PageId

_log = logging.getLogger(__name__)

MODELS = 8
INSERT_SECONDS = 1.0
"""How long a fetch waits for an insert on another thread."""
UNENDED = 64
"""Requests without an end; an aborted or failed one stays until newer ones replace it."""


class _Unended:
    """Knows the prompts that were asked for, and ends a request when its prompt is stored with an
    answer behind it. One thread at a time uses it."""

    def __init__(self) -> None:
        self._requests: deque[tuple[Tokens, AskedRequest | None]] = deque(maxlen=UNENDED)

    def begin(self, prompt: Tokens, asked: AskedRequest | None) -> None:
        """`asked` is None where something else ends the request."""
        self._requests.append((prompt, asked))

    def stored(self, tokens: Tokens) -> int:
        """End the request that these tokens answer: of several the one with the longest prompt, and
        of equal ones the first. Return the length of the longest prompt that they begin with."""
        begun = [
            request
            for request in self._requests
            if 0 < len(request[0]) <= len(tokens)
            and np.array_equal(tokens[: len(request[0])], request[0])
        ]
        answered = [request for request in begun if len(request[0]) < len(tokens)]
        if answered:
            prompt, asked = found = max(answered, key=lambda request: len(request[0]))
            self._requests = deque((one for one in self._requests if one is not found), UNENDED)
            if asked is not None:
                asked.ended(len(tokens) - len(prompt))
        return max((len(prompt) for prompt, _ in begun), default=0)


TYPES = ("assistant", "user", "system")
"""Answers are forgotten first and system prompts last, as in mlx-lm's own cache."""
SEQUENCES = 256


class _Inserted(NamedTuple):
    cache_type: str
    nbytes: int


class StoredSequences:
    """Counts sequences whose last page is still in a tier. One thread at a time uses it."""

    def __init__(self, store: BlockStore) -> None:
        self._store = store
        self._sequences: OrderedDict[PageId, _Inserted] = OrderedDict()

    def add(self, end: PageId, cache_type: str, nbytes: int) -> None:
        """Note a sequence by its last page."""
        self._sequences[end] = _Inserted(cache_type, nbytes)
        self._sequences.move_to_end(end)
        if len(self._sequences) > SEQUENCES:
            self._sequences.popitem(last=False)

    def __len__(self) -> int:
        return len(self._live())

    def keep_newest(self, count: int) -> list[PageId]:
        """Forget all but `count` sequences, answers first; return the last pages of those."""
        # Types that are not known come first, as answers do.
        rank = {name: place for place, name in enumerate(TYPES)}
        order = sorted(self._live().items(), key=lambda item: rank.get(item[1].cache_type, 0))
        gone = [page for page, _one in order[: max(0, len(order) - count)]]
        for page in gone:
            del self._sequences[page]
        return gone

    def by_type(self) -> dict[str, dict[str, int]]:
        result = {name: {"n_sequences": 0, "n_bytes": 0} for name in TYPES}
        for one in self._live().values():
            row = result.setdefault(one.cache_type, {"n_sequences": 0, "n_bytes": 0})
            row["n_sequences"] += 1
            row["n_bytes"] += one.nbytes
        return result

    def _live(self) -> OrderedDict[PageId, _Inserted]:
        for page in [page for page in self._sequences if self._store.find(page) is None]:
            del self._sequences[page]
        return self._sequences


@dataclass(frozen=True, slots=True)
class _Known:
    models: ModelCaches
    lanes: dict[Bits | None, Lane]


REMEMBERED = 64
"""Sequences whose pages are known that were stored along the way."""


class TieredPromptCache:
    """Stands in for mlx-lm's LRUPromptCache: the same calls, on the server's generation thread.

    `source` says which model is loaded (mlx-lm's ModelProvider does). Sequences of a key that it
    does not know are kept for this object only. Models share the store's budgets, and are not kept
    alive. Without a store it makes one of its own, in memory only. `max_size` (sequences) and
    `max_bytes` are LRUPromptCache's; None leaves it to the store's budgets. Raises ValueError for
    `kv_bits` that MLX lacks; `fetch_nearest_cache` and `insert_cache` never raise: a failure is a
    miss, or nothing stored. A fetch on another thread sees the pages of an insert that has begun:
    that one holds `_lock`, which guards `_sequences`. Mutable, by that one thread: `_known`,
    `_followed`, `_unended`, and `last`, the request of the latest fetch.
    """

    insert_ends_request = True
    """Whether a request ends when its prompt is stored with an answer."""

    def __init__(
        self,
        store: BlockStore | None = None,
        source: ModelSource | None = None,
        *,
        max_size: int | None = None,
        max_bytes: int | None = None,
        kv_bits: int | None = None,
        kv_group_size: int = 64,
        quantized_kv_start: int = QUANTIZED_KV_START,
        salt: str | bytes | None = None,
    ) -> None:
        if kv_bits is not None:
            check_packing(kv_bits, kv_group_size)
        self._store = store or BlockStore(CacheSettings(hot_cache_only=True, socket="off"))
        self._most = max_size, max_bytes
        self._source = source
        self._start = quantized_kv_start
        self._bits = None if kv_bits is None else Bits(kv_bits, kv_group_size, quantized_kv_start)
        self._salt = salt
        self._known: OrderedDict[Any, _Known] = OrderedDict()
        self._sequences = StoredSequences(self._store)
        self._lock = threading.RLock()
        self._unended = _Unended()
        self._followed: deque[Following] = deque(maxlen=REMEMBERED)
        self.last: AskedRequest | None = None

    @uninterrupted
    def fetch_nearest_cache(
        self, model: Any, tokens: Sequence[int]
    ) -> tuple[list[Any] | None, list[int]]:
        """Return a private prompt cache with a prefix of `tokens`, and the tokens after it, one at
        least. `(None, tokens)` for a miss. Evaluates MLX and reads the disk."""
        if self._lock.acquire(timeout=INSERT_SECONDS):
            self._lock.release()
        restored = self._restored(model, tokens)
        position = restored.point.position
        return restored.prompt_cache if position else None, list(tokens[position:])

    def _restored(self, model: Any, prompt: Sequence[int]) -> Restored:
        requests = self._store.requests
        try:
            known, tokens = self._lanes(model), as_tokens(prompt)
        except Exception as error:
            _log.exception("the prompt cache is passed by")
            self.last = requests.ask(NOWHERE, len(prompt))
            reason = f"{reasons.ERROR}:{type(error).__name__}"
            self.last.restored(0, 0, 0.0, reason)
            return Restored([], missed(reason))
        lanes = [] if known is None else list(known.lanes.values())
        self.last = requests.ask(lanes[0].view.namespace if lanes else NOWHERE, len(prompt))
        self._unended.begin(tokens, self.last if self.insert_ends_request else None)
        return restored_from(lanes, tokens, self.last)

    @uninterrupted
    def insert_cache(
        self,
        model: Any,
        tokens: Sequence[int],
        prompt_cache: Sequence[Any],
        *,
        cache_type: str = "assistant",
        ended: str | None = None,
    ) -> None:
        """Store the caches of a sequence, as far as they hold its tokens; copies the new blocks.
        `ended` is a hint, as for `Session.commit`."""
        how = self._store.arguments.known("ended", ended, is_ended, None, ENDED)
        try:
            with self._lock:
                self._insert(model, as_tokens(tokens), prompt_cache, cache_type, how)
            self.trim_to(n_sequences=self._most[0], n_bytes=self._most[1])
        except UnsupportedCache as error:
            self._store.counters.skip(reasons.UNSUPPORTED)
            _log.debug("not stored: %s", error)
        except Exception:
            self._store.counters.skip(reasons.ERROR)
            _log.exception("a sequence is not stored")

    def _insert(
        self,
        model: Any,
        tokens: Tokens,
        prompt_cache: Sequence[Any],
        cache_type: str,
        ended: Ended | None,
    ) -> None:
        prompt_length = self._unended.stored(tokens)
        known = self._lanes(model)
        if known is None:
            known = self._remember(model, unknown_model(self._store, prompt_cache))
        bits = packed_as(prompt_cache, self._start)
        lane = known.lanes.get(bits)
        if lane is None:
            lane = known.lanes[bits] = lane_of(known.models.kinds, bits, self._salt)
        stored = lane.store(tokens, prompt_cache, prompt_length, self._along, ended)
        if stored is None:
            self._store.counters.skip(reasons.LAYOUT_CHANGED)
        elif stored.result.tokens:
            self._sequences.add(
                PageId(stored.chain.key(stored.result.tokens), lane.view.groups[0].name),
                cache_type,
                stored.result.nbytes,
            )

    def followers(
        self, model: Any, tokens: "Sequence[int] | Tokens", start: int
    ) -> list[Following]:
        """Return what stores a sequence's dense caches while it grows from `start` tokens on: one
        for the target, one for a draft model. [] for a model that is not known."""
        known = self._lanes(model)
        scopes = [] if known is None else known.lanes[None].scopes
        if not all(scope.supported for scope in scopes):
            return []
        followed: list[Following] = []
        for scope in scopes:
            first = followed[-1].part.stop if followed else 0
            followed.append(Following(scope, tokens, start, first))
        self._followed.extend(followed)
        return followed

    def awaited(self, model: Any, tokens: Tokens) -> PromptFlight | None:
        """Return the prompt in flight that brings a block or more that is not kept yet. Any thread
        may ask."""
        found = (lane.awaited(tokens) for lane in self.lanes_of(model))
        return next(filter(None, found), None)

    def flight(
        self, model: Any, tokens: Sequence[int], start: int, stops: Sequence[int]
    ) -> PromptFlight | None:
        """Note a dense prompt, as `Lane.fly` does; None for a model that is not known. Any thread
        may call."""
        known = self._known.get(model)
        return None if known is None else known.lanes[None].fly(as_tokens(tokens), start, stops)

    def preparation(self, model: Any, tokens: Tokens, most: int) -> Preparation | None:
        """Return a preparation of a coming prompt's beginning, None where nothing is prepared."""
        known = self._lanes(model)
        # Until its caches are packed, a prompt's bits depend on where its chunks end.
        least = 0 if self._bits is None else max(1, self._start)
        lane = known.lanes[self._bits] if known and self.prepares(model) else None
        return None if lane is None else lane.prepare(tokens, most, least)

    def prepares(self, model: Any) -> bool:
        """False for a model that is unknown, has a draft model, or whose caches are not supported
        or not kept in memory. Any thread may ask."""
        known = self._known.get(model)
        scopes = [] if known is None else known.lanes[self._bits].scopes
        return len(scopes) == 1 and scopes[0].supported and self._store.retains

    def note_prepared(self, model: Any, tokens: Tokens) -> None:
        """Make prepared tokens findable for prompts that part from them inside a block."""
        known = self._known.get(model)
        if known is not None:
            known.lanes[self._bits].siblings.add(tokens)

    def _along(self, chain: KeyChain) -> Along:
        """Return the pages of a sequence that were stored while it grew."""
        found = [(following.began_ns, following.stored_of(chain)) for following in self._followed]
        pages = {page for _, stored in found for page in stored}
        return Along(pages, max((began for began, stored in found if stored), default=0))

    @uninterrupted
    def restorable(self, model: Any, tokens: Sequence[int]) -> int:
        """Return how many of the tokens a fetch would restore if others followed them; reads no
        payload, and never raises."""
        try:
            known = self._lanes(model)
            found = known and nearest(known.lanes.values(), as_tokens([*tokens, 0]))
        except Exception:
            _log.exception("the prompt cache is passed by")
            return 0
        return found[1].position if found else 0

    def stops(self, model: Any, tokens: Sequence[int], start: int) -> list[int]:
        """Return where a prompt's windows and recurrent state are wanted while it is computed from
        `start` on; [] for a model that has only pages, or is unknown."""
        known = self._lanes(model)
        scope = None if known is None else known.lanes[None].view
        if scope is None or scope.trims:
            return []
        found = scope.find(scope.chain(as_tokens(tokens)), len(tokens) - 1, wait=0.0)
        return scope.stops(start, len(tokens), found.wanted_state)

    @uninterrupted
    def clear(self, model: Any) -> None:
        """Evict a model's clean pages from memory; without a disk all of its pages are deleted."""
        leave = self._store.clear if self._store.cold_dir is None else self._store.leave_memory
        for scope in (scope for lane in self.lanes_of(model) for scope in lane.scopes):
            if scope.supported:
                leave(scope.chain(as_tokens([])).namespace)

    def lanes_of(self, model: Any) -> list[Lane]:
        """Return the lanes of a known model; none before it was served. Any thread may ask."""
        known = self._known.get(model)
        return [] if known is None else list(known.lanes.values())

    def fresh(self, model: Any) -> list[Any]:
        """Return new, empty caches for a known model, its draft model's behind them."""
        known = self._lanes(model)
        return [] if known is None else known.lanes[None].fresh()

    @uninterrupted
    def trim_to(self, *, n_sequences: int | None = None, n_bytes: int | None = None) -> None:
        """Evict from memory down to `n_bytes`; all but `n_sequences` are evicted first. Negative
        numbers count as zero."""
        if n_sequences is not None:
            with self._lock:
                self._store.demote(self._sequences.keep_newest(max(0, n_sequences)))
        if n_bytes is not None:
            self._store.shrink_hot(max(0, n_bytes))

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the hot tier holds, of every model."""
        return self._store.stats().hot.nbytes

    @uninterrupted
    def __len__(self) -> int:
        """Return how many of the inserted sequences are still in a tier."""
        with self._lock:
            return len(self._sequences)

    @uninterrupted
    def stats_by_type(self) -> dict[str, dict[str, int]]:
        """Return `{"n_sequences", "n_bytes"}` by the type that sequences were inserted with."""
        with self._lock:
            return self._sequences.by_type()

    def _lanes(self, key: Any) -> _Known | None:
        """Return the lanes of a model key; looks at the model when it was loaded anew."""
        known = self._known.get(key)
        source = self._source
        if source is None or source.model is None or source.model_key != key:
            return known
        if known is not None and known.models.model() is source.model:
            self._known.move_to_end(key)
            return known
        return self._remember(key, caches_of(source, self._store))

    def _remember(self, key: Any, models: ModelCaches) -> _Known:
        kinds = [None] if self._bits is None else [self._bits, None]
        known = _Known(models, {bits: lane_of(models.kinds, bits, self._salt) for bits in kinds})
        self._known[key] = known
        if len(self._known) > MODELS:
            self._known.popitem(last=False)
        return known
