"""Lanes: the kinds of cache that one model's sequences may have, each restored on its own.

With `kv_bits` a sequence is dense up to `quantized_kv_start` tokens and packed from there, so
a prompt may be found in either kind; the longer one wins, then the kind that it would have. With
a draft model a lane holds the target's caches and the draft's, restored to the same position.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from mlx_lm.models.cache import QuantizedKVCache

from omlx_cache.commit.admission import CommitResult
from omlx_cache.commit.budgets import Fit
from omlx_cache.flights import PromptFlight
from omlx_cache.integrations.mlx_lm.models import ModelCaches
from omlx_cache.integrations.siblings import Siblings, StoredPrefix, find_along
from omlx_cache.restore.pending import Restored, missed
from omlx_cache.scope import Scope, Scopes
from omlx_cache_storage.hints import Ended
from omlx_cache_storage.keys import KeyChain, Tokens
from omlx_cache_storage.page import PageId

QUANTIZED_KV_START = 5000
"""Where mlx-lm begins to pack a sequence, unless told otherwise."""
ROOM_TOKENS = 256


class Bits(NamedTuple):
    """How mlx-lm packs a sequence's KV caches, and from which length on."""

    bits: int
    group_size: int
    start: int


class Stored(NamedTuple):
    """A sequence that was stored: its keys, its last position, and what the tiers took."""

    chain: KeyChain
    result: CommitResult


class Along(NamedTuple):
    """The pages that were stored of a sequence while it grew, and the latest stamp of theirs."""

    pages: Iterable[PageId] = ()
    since_ns: int = 0


class Lane:
    """Sequences of one kind of cache. Use it on the model's thread; no method raises."""

    def __init__(self, models: ModelCaches, bits: Bits | None, salt: str | bytes | None) -> None:
        self.bits = bits
        self._target = _view(models.target, bits, salt)
        self._draft = None if models.draft is None else _view(models.draft, bits, salt)
        self._siblings = Siblings()

    @property
    def view(self) -> Scope:
        return self._target

    def find(self, tokens: Tokens) -> StoredPrefix | None:
        """Return how much of a prompt, its last token excepted, is stored; reads no payload."""
        if not self._target.supported:
            return None
        limit = len(tokens) - 1
        found = find_along(self._target, self._siblings, tokens, limit)
        if self._draft is not None:
            draft = find_along(self._draft, self._siblings, tokens, found.position)
            found = found._replace(position=min(found.position, draft.position))
        return found

    def suits(self, found: StoredPrefix) -> bool:
        """Return whether an uninterrupted run would hold this lane's kind of cache there."""
        return self.bits is None or found.position >= self.bits.start

    def fit(self) -> Fit | None:
        """Return how much of a sequence the budgets hold; None before one was stored."""
        return self._target.budgets.fit()

    def worth_waiting(self, tokens: Tokens) -> bool:
        """True while another request computes a block or more of a prompt beyond what is kept of
        it, or beyond what of that is worth reading. Any thread may ask."""
        target = self._target
        flights = target.store.flights
        if not target.supported or flights.idle:
            return False
        chain = target.chain(tokens)
        found = target.find(chain, len(tokens) - 1, wait=0.0).position
        if flights.awaited(chain, found) is not None:
            return True
        worth = target.find(chain, found, worth=True, wait=0.0).position
        return worth < found and flights.awaited(chain, worth) is not None

    def fly(self, tokens: Tokens, start: int, stops: Iterable[int]) -> PromptFlight | None:
        """Note a prompt that is about to be computed from `start` on, kept at `stops` at least and
        where it is told to; None without keys. Its owner ends the flight."""
        if not self._target.supported:
            return None
        flights = self._target.store.flights
        return flights.begin(
            self._target.chain(tokens), start, None if self._target.trims else stops
        )

    def restore(self, tokens: Tokens, found: StoredPrefix) -> Restored:
        """Restore what `find` saw; less when a page proved bad. The list is the caller's own."""
        room = len(tokens) + ROOM_TOKENS
        restored = self._target.restore(found.chain, found.position, room)
        if self._draft is None or not restored.point.position:
            return self._whole(restored)
        along = find_along(self._draft, self._siblings, tokens, restored.point.position)
        draft = self._draft.restore(along.chain, restored.point.position, room)
        if draft.point.position < restored.point.position:
            restored = self._target.restore(found.chain, draft.point.position, room)
        if draft.point.position != restored.point.position or not draft.point.position:
            return Restored(self.fresh(), missed(draft.point.reason))
        return replace(restored, prompt_cache=restored.prompt_cache + draft.prompt_cache)

    def store(
        self,
        tokens: Tokens,
        prompt_cache: Sequence[Any],
        prompt_length: int = 0,
        along: Callable[[KeyChain], Along] = lambda chain: Along(),
        ended: Ended | None = None,
    ) -> Stored | None:
        """Store a sequence's caches, the target's and the draft's; None for another kind's. `along`
        says what was stored while it grew, `ended` how its answer ended."""
        size = len(self._target.fresh()) if self._draft is not None else len(prompt_cache)
        own, drafts = prompt_cache[:size], prompt_cache[size:]
        if not self._target.accepts(own):
            return None
        chain = self._target.chain(tokens)
        result = self._target.commit(chain, own, prompt_length, *along(chain), ended=ended)
        self._siblings.add(chain.tokens[: result.tokens])
        if self._draft is not None and self._draft.accepts(drafts):
            draft_chain = self._draft.chain(tokens)
            self._draft.commit(draft_chain, drafts, prompt_length, *along(draft_chain), ended=ended)
        return Stored(chain, result)

    def scopes(self) -> list[Scope]:
        """Return the target's scope, and the draft's behind it."""
        return [self._target] + ([] if self._draft is None else [self._draft])

    def fresh(self) -> list[Any]:
        """Return new, empty caches: the target's, then the draft's."""
        return self._target.fresh() + ([] if self._draft is None else self._draft.fresh())

    def _whole(self, restored: Restored) -> Restored:
        if restored.point.position or self._draft is None:
            return restored
        return Restored(self.fresh(), missed(restored.point.reason))


def nearest(
    lanes: Iterable[Lane], tokens: Tokens, *, exact: bool = False
) -> tuple[Lane, StoredPrefix] | None:
    """Return where most of a prompt can be restored, even if that is nothing; reads no payload.

    With `exact` packed caches are not cut back to a length at which they would be dense. None
    when no lane can serve.
    """
    found = [(lane, where) for lane in lanes if (where := lane.find(tokens)) is not None]
    found = [pair for pair in found if not exact or pair[0].suits(pair[1])]
    if not found:
        return None
    return max(found, key=lambda pair: (pair[1].position, pair[0].suits(pair[1])))


def packed_as(prompt_cache: Sequence[Any], start: int) -> Bits | None:
    """Return how caches are packed, None when none is."""
    for cache in prompt_cache:
        if type(cache) is QuantizedKVCache:
            return Bits(int(cache.bits), int(cache.group_size), start)
    return None


def _view(scopes: Scopes, bits: Bits | None, salt: str | bytes | None) -> Scope:
    if bits is None:
        return scopes.scope(salt=salt)
    # Tokens before `start` attended to dense keys: other bits than with packed ones from the first
    # on, as sessions have them.
    extra = {"quantized_kv_start": str(bits.start)}
    return scopes.scope(salt=salt, extra=extra, kv_bits=bits.bits, kv_group_size=bits.group_size)
