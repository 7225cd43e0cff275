"""Rows of mlx-lm's batches: where they lie, and whether they are computed as one row alone is.

`BatchGenerator.extract_cache` copies a prefix from its first token on, so it is too dear for every
chunk. `row_of` reads the batch itself, which is private to the generator; where it cannot, the
answer is None, and blocks are stored when the sequence ends.

A row that joins a batch of mlx-lm before 0.32 before its first token makes the whole batch float32,
and the recurrent state of an empty batch takes padding for tokens. `batchable` caches do it right:
nothing of mlx-lm is changed. In every version some models compute the padding behind shorter rows
into their states, and with them all that follows: `heeds_padding` finds them.
"""

import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.models import cache as upstream

from omlx_cache.adapters import adapter_for, register
from omlx_cache.adapters.base import TokenRange
from omlx_cache.adapters.registry import leaves
from omlx_cache.arrays.mlxio import evaluate
from omlx_cache.mlx_lm_versions import is_old
from omlx_cache.pages.cut import Source
from omlx_cache.requests.log import AskedRequest

_log = logging.getLogger(__name__)

CLOSE = 0.02


class BatchRow(NamedTuple):
    """A request's slot in a batch's caches, and the tokens that it holds there."""

    caches: Sequence[Any]
    slot: int
    tokens: Sequence[int]


def row_of(generator: Any, uid: int) -> BatchRow | None:
    """Return where a request is computed now; None while it waits, and in an unknown generator."""
    try:
        stage, index = generator._find_uids([uid])[uid]
        batch = {1: generator._prompt_batch, 2: generator._generation_batch}[stage]
        return BatchRow(batch.prompt_cache, index, batch.tokens[index])
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def stop_row_at(generator: Any, uid: int, position: int) -> bool:
    """Have a row's prefill end a segment where its sequence has `position` tokens; True when it
    will. False, with nothing changed, when it is past that, when at most the last token would
    follow, and in an unknown generator."""
    try:
        stage, index = generator._find_uids([uid])[uid]
        if stage == 0:
            segments = generator._unprocessed_sequences[index][1]
            end = len(generator._unprocessed_sequences[index][4])
        elif stage == 1:
            segments = generator._currently_processing[index][0]
            end = len(generator._prompt_batch.tokens[index])
        else:
            return False
        lengths = [len(segment) for segment in segments]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return False
    # The generator feeds the last segment, of one token, by itself: there is no stop behind it.
    if not end < position < end + sum(lengths):
        return False
    for place, length in enumerate(lengths):
        if end < position < end + length:
            whole = segments[place]
            cut = position - end
            segments[place : place + 1] = [whole[:cut], whole[cut:]]
        end += length
    return True


def segments_of(tokens: list[int], start: int, stops: Sequence[int]) -> list[list[int]]:
    """Return the tokens behind `start`, in parts that end at the stops."""
    return [tokens[a:b] for a, b in pairwise([start, *stops, len(tokens)])]


def paged_source(row: BatchRow, start: int) -> Source | None:
    """Return lazy slices of a row's keys and values from token `start` on; None when its caches
    are not where its tokens say. Empty for a model without growing caches."""
    arrays: dict[str, Any] = {}
    stop = len(row.tokens)
    padding: int | None = None
    for path, cache in leaves(row.caches):
        if type(cache) not in (upstream.BatchKVCache, RightBatchKVCache) or cache.keys is None:
            continue
        if padding is None:
            padding = int(cache.left_padding[row.slot].item())
        if cache._idx - padding != stop or cache._right_padding is not None:
            return None
        span = slice(padding + start, padding + stop)
        one = slice(row.slot, row.slot + 1)
        arrays[f"{path}.keys"] = cache.keys[one, :, span]
        arrays[f"{path}.values"] = cache.values[one, :, span]
    return Source(arrays, dict.fromkeys(arrays, (TokenRange(start, stop),)))


class BatchTimer:
    """Tells requests how many tokens of their prompts the steps of a batch have computed. Rows that
    share a step share its time, which the store's sums count once. Mutable, by the model's thread:
    `_fed`, tokens by row."""

    def __init__(self, asked: Callable[[Hashable], AskedRequest | None]) -> None:
        self._asked = asked
        self._fed: dict[Hashable, int] = {}

    def step(self, prompts: Iterable[Any], seconds: float) -> None:
        """Count what a step of so many seconds has computed, which ends now."""
        for response in prompts:
            fed, total = response.progress
            before = self._fed.get(response.uid, 0)
            # Less than before: the row was begun again after an error.
            new = fed - before if fed >= before else fed
            if response.end_of_prompt:
                self.forget(response.uid)
            else:
                self._fed[response.uid] = fed
            asked = self._asked(response.uid)
            if asked is not None and new > 0:
                asked.computed(new, 0.0 if new == 1 and fed == total else seconds)

    def forget(self, uid: Hashable) -> None:
        self._fed.pop(uid, None)


def row_caches(generator: Any, restored: list[Any] | None) -> list[Any] | None:
    """Return the caches to insert a row with, None where the generator makes right ones itself."""
    if not is_old():
        return restored
    return batchable(generator._make_new_cache() if restored is None else restored)


def batchable(prompt_cache: Sequence[Any]) -> list[Any]:
    """Return a row's caches, or others with their arrays, of classes whose batches are right."""
    return [_batchable(cache) for cache in prompt_cache]


def _batchable(cache: Any) -> Any:
    if type(cache) is upstream.CacheList:
        return upstream.CacheList(*batchable(cache.caches))
    kind = _RIGHT.get(type(cache))
    return cache if kind is None else _as(kind, cache)


def _as(kind: type, cache: Any) -> Any:
    other: Any = object.__new__(kind)
    vars(other).update(vars(cache))
    return other


class _Extends:
    """Mixin of a batch: rows without tokens have the type of rows with some."""

    @classmethod
    def merge(cls, caches: Any) -> Any:
        # Of rows without tokens mlx-lm makes its own class.
        return _as(cls, super().merge(caches))  # type: ignore[misc]

    def extend(self: Any, other: Any) -> None:
        for empty, full in ((self, other), (other, self)):
            if empty.keys is None and full.keys is not None:
                rows = empty.offset.shape[0]
                empty.keys, empty.values = (
                    mx.zeros((rows, side.shape[1], 0, side.shape[3]), side.dtype)
                    for side in (full.keys, full.values)
                )
        super().extend(other)  # type: ignore[misc]


class RightBatchKVCache(_Extends, upstream.BatchKVCache):  # type: ignore[misc]
    pass


class RightBatchRotatingKVCache(_Extends, upstream.BatchRotatingKVCache):  # type: ignore[misc]
    pass


class RightKVCache(upstream.KVCache):  # type: ignore[misc]
    merge = RightBatchKVCache.merge


class RightRotatingKVCache(upstream.RotatingKVCache):  # type: ignore[misc]
    merge = RightBatchRotatingKVCache.merge


class RightArraysCache(upstream.ArraysCache):  # type: ignore[misc]
    lengths: Any

    def make_mask(self, N: int) -> Any:
        lengths: Any = self.lengths
        self.lengths = None
        mask = super().make_mask(N)
        self.lengths = lengths
        if lengths is None:
            return mask
        within = mx.arange(N) < lengths[:, None]
        return within if mask is None else mask & within


_RIGHT: dict[type, type] = {
    upstream.KVCache: RightKVCache,
    upstream.RotatingKVCache: RightRotatingKVCache,
    upstream.ArraysCache: RightArraysCache,
}

# A server that computes a row alone after all hands such caches back as they are.
for _own, _right in _RIGHT.items():
    register(
        f"{__name__}.{_right.__name__}",
        adapter_for(object.__new__(_own)),
        same_as=f"{_own.__module__}.{_own.__name__}",
    )


def heeds_padding(model: Any, make_cache: Callable[[], list[Any]] | None = None) -> bool:
    """Return False for a model whose states depend on the padding behind a row, and for one with
    states for which that is unknown. Never raises. `make_cache` makes the model's caches where
    mlx-lm does not. Computes a few tokens twice, with other padding, for a model with recurrent
    states: call it on the model's thread."""
    make_cache = make_cache or (lambda: upstream.make_prompt_cache(model))
    try:
        if not _states(make_cache()):
            return True
    except Exception as error:
        _log.debug("this model's caches cannot be made: %r", error)
        return True
    try:
        little = _beside_a_longer_row(model, make_cache, 2, padding=0)
        much = _beside_a_longer_row(model, make_cache, 32, padding=1)
    except Exception as error:
        _log.warning("whether this model heeds padding cannot be told: %r", error)
        return False
    return all(_close(one, other) for one, other in zip(little, much, strict=True))


def refuse_batches(provider: Any) -> None:
    """Have mlx-lm's ModelProvider serve one request at a time, where a batch would compute padding
    into its model's states. Call it on the model's thread, once for each model."""
    if provider.is_batchable and not heeds_padding(provider.model):
        provider.is_batchable = False
        _log.info("one request at a time: in a batch this model computes padding")


def _close(one: mx.array, other: mx.array) -> bool:
    """True where nothing but the order of sums makes two states differ."""
    one, other = one.astype(mx.float32), other.astype(mx.float32)
    return bool((mx.abs(one - other).max() <= CLOSE * mx.abs(one).max()).item())


def _beside_a_longer_row(
    model: Any, make_cache: Callable[[], list[Any]], more: int, padding: int
) -> list[mx.array]:
    """Return the states of a row that has tokens and gets two, beside one that gets `more`."""
    rows = [make_cache(), make_cache()]
    if is_old():
        rows = [batchable(row) for row in rows]
    batch = [first.merge([first, second]) for first, second in zip(*rows, strict=True)]
    logits = [model(mx.array([[4, 5, 6, 7]] * 2), cache=batch)]
    evaluate(logits)
    for cache in batch:
        cache.prepare(lengths=[2 + more, 2], right_padding=[0, more])
    logits.append(model(mx.array([[3] * (2 + more), [1, 2] + [padding] * more]), cache=batch))
    for cache in batch:
        cache.finalize()
    states = _states([cache.extract(1) for cache in batch])
    arrays = [array for state in states for array in state.cache if array is not None]
    evaluate([logits, arrays])
    return arrays


def _states(caches: Sequence[Any]) -> list[Any]:
    return [cache for _, cache in leaves(caches) if isinstance(cache, upstream.ArraysCache)]
