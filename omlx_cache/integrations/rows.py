"""The new blocks of one row of mlx-lm's batched caches, without extracting the whole prefix.

`BatchGenerator.extract_cache` copies a prefix from its first token on, so it is too dear for every
chunk. This module reads the batch itself, which is private to the generator; where it cannot, the
answer is None, and blocks are stored when the sequence ends. `BatchTimer` counts each row's
computed tokens of its prompt.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from mlx_lm.models.cache import BatchKVCache

from omlx_cache.adapters.base import TokenRange
from omlx_cache.adapters.registry import leaves
from omlx_cache.integrations.old_batches import RightBatchKVCache
from omlx_cache.pages.cut import Source
from omlx_cache.requests.log import AskedRequest

_BATCHES = BatchKVCache, RightBatchKVCache


class BatchRow(NamedTuple):
    """A request's place in a batch: the batch's caches, its slot there, and the tokens it holds."""

    caches: Sequence[Any]
    slot: int
    tokens: Sequence[int]


def row_of(generator: Any, uid: int) -> BatchRow | None:
    """Return where a request is computed now; None while it waits, and for another generator."""
    try:
        stage, index = generator._find_uids([uid])[uid]
        batch = {1: generator._prompt_batch, 2: generator._generation_batch}[stage]
        return BatchRow(batch.prompt_cache, index, batch.tokens[index])
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def stop_row_at(generator: Any, uid: int, position: int) -> bool:
    """Have a row's prefill end a segment where its sequence has `position` tokens.

    True when it will stop there. False, with nothing changed, when it is past that, when only the
    last token would follow it or less, and for another generator.
    """
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
        if type(cache) not in _BATCHES or cache.keys is None:
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
    """Tells requests how many tokens of their prompts the steps of a batch have computed.

    Rows that share a step share its time, which the store's sums count once. `asked` gives a row's
    request. Mutable, by the model's thread: `_fed`, tokens by row.
    """

    def __init__(self, asked: Callable[[Hashable], AskedRequest | None]) -> None:
        self._asked = asked
        self._fed: dict[Hashable, int] = {}

    def step(self, prompts: Iterable[Any], seconds: float) -> None:
        """Count the tokens that a step of so many seconds has computed, which ends now; `prompts`
        are its responses."""
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
        """Drop a row that has left the batch."""
        self._fed.pop(uid, None)
