"""Lanes: the kinds of cache that one model's sequences may have, each restored on its own.

With `kv_bits` a sequence is dense up to `quantized_kv_start` tokens and packed from there. So a
prompt may be found in either kind: the longer one wins, then the kind that it would have. With a
draft model a lane holds the target's caches and the draft's, restored to the same position.

Block keys say nothing about a block's first tokens. `Siblings` of this process do, so that two
prompts that part inside a block still share their common tokens. The last functions here name
models, and prompts by their tokens. Imports no mlx-lm.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from omlx_cache import reasons
from omlx_cache.commit.committer import CommitResult
from omlx_cache.flights import PromptFlight
from omlx_cache.mlx_lm_versions import is_cache
from omlx_cache.preparation import Preparation
from omlx_cache.requests.explainer import Walked, compact
from omlx_cache.requests.log import AskedRequest
from omlx_cache.restore.lookup import RestorePoint
from omlx_cache.restore.pending import Restored, missed
from omlx_cache.scope import Scope, Scopes
from omlx_cache_storage.eviction.order import Ended
from omlx_cache_storage.keys import KeyChain, Tokens, as_tokens, shared_length
from omlx_cache_storage.page import PageId

_log = logging.getLogger(__name__)

SEQUENCES = 64
TOKENS = 1 << 20
"""Of all sequences together: 4 MiB."""


class Siblings:
    """The sequences that were stored last; one that continues another replaces it. One thread uses
    it."""

    def __init__(self) -> None:
        self._known: list[Tokens] = []

    def add(self, tokens: Tokens) -> None:
        known = [one for one in self._known if shared_length(one, tokens) < len(one)]
        self._known = [*known, compact(tokens)][-SEQUENCES:]
        while sum(map(len, self._known)) > TOKENS:
            del self._known[0]

    def nearest(self, tokens: Tokens) -> Tokens:
        """Return the sequence that shares most with a prompt; empty without one."""
        return max(
            self._known, key=lambda known: shared_length(known, tokens), default=as_tokens([])
        )


class StoredPrefix(NamedTuple):
    """A prompt can be restored up to `position` along a stored sequence's keys. `walked` is the
    lookup along its own, which missed a window or a state at `wanted_state`."""

    position: int
    chain: KeyChain
    reason: str | None
    walked: Walked
    wanted_state: int | None


def find_along(
    scope: Scope, siblings: Siblings, tokens: Tokens, limit: int, wait: float | None = None
) -> StoredPrefix:
    """Return the better of the prompt's own blocks and a sibling that parts inside one; waits for
    other machines as `Scope.find` does."""
    chain = scope.chain(tokens)
    own = scope.find(chain, limit, wait=wait)
    walked = Walked(chain, scope.namespace.groups, own.matched, own.lacking)
    found = StoredPrefix(own.position, chain, own.reason, walked, own.wanted_state)
    sibling = siblings.nearest(tokens)
    shared = min(shared_length(sibling, tokens), limit)
    if shared <= max(own.position, own.matched // chain.block_size * chain.block_size):
        return found
    other = scope.chain(as_tokens(sibling[: chain.block_start(shared) + chain.block_size]))
    reached = scope.find(other, shared, wait=wait)
    if reached.position <= own.position:
        return found
    return found._replace(position=reached.position, chain=other)


QUANTIZED_KV_START = 5000
"""Where mlx-lm begins to pack a sequence, unless told otherwise."""
ROOM_TOKENS = 256


class Bits(NamedTuple):
    """How mlx-lm packs a sequence's KV caches, and from which length on."""

    bits: int
    group_size: int
    start: int


class Stored(NamedTuple):
    chain: KeyChain
    result: CommitResult


class Along(NamedTuple):
    """The pages that were stored of a sequence while it grew, and their latest stamp."""

    pages: Iterable[PageId] = ()
    since_ns: int = 0


class Lane:
    """Sequences of one kind of cache, which an uninterrupted run holds from `start` tokens on. Use
    it on the model's thread; no method raises. `scopes` are the target's, which is the `view`, and
    a draft model's behind it."""

    def __init__(self, scopes: Iterable[Scope], start: int = 0) -> None:
        self.scopes = list(scopes)
        self.view = self.scopes[0]
        self.start = start
        self.siblings = Siblings()

    def find(self, tokens: Tokens) -> StoredPrefix | None:
        """Return how much of a prompt, its last token excepted, is stored; reads no payload."""
        if not self.view.supported:
            return None
        found = find_along(self.view, self.siblings, tokens, len(tokens) - 1)
        for draft in self.scopes[1:]:
            along = draft.find(draft.chain(found.chain.tokens), found.position)
            found = found._replace(position=along.position)
        return found

    def awaited(self, tokens: Tokens) -> PromptFlight | None:
        """Return the prompt in flight that brings a block or more beyond the part that the store
        has and that is worth reading. Any thread may ask."""
        flights = self.view.store.flights
        if not self.view.supported or not flights.live:
            return None
        chain = self.view.chain(tokens)
        found = self.view.find(chain, len(tokens) - 1, wait=0.0).position
        flight = flights.awaited(chain, found)
        if flight is not None:
            return flight
        worth = self.view.find(chain, found, worth=True, wait=0.0).position
        return flights.awaited(chain, worth) if worth < found else None

    def fly(self, tokens: Tokens, start: int, stops: Iterable[int]) -> PromptFlight | None:
        """Note a prompt that is about to be computed from `start` on, and stored at `stops` at
        least; None without keys. Its owner ends the flight."""
        if not self.view.supported:
            return None
        flights, kept = self.view.store.flights, None if self.view.trims else stops
        return flights.begin(self.view.chain(tokens), start, kept)

    def restore(self, found: StoredPrefix, room: int) -> Restored:
        """Restore what `find` saw into buffers with `room` for so many tokens; less when a page
        proved bad, the same of both models. The list is the caller's own."""
        tokens, limit = found.chain.tokens, found.position
        while True:
            parts = [
                scope.pending(
                    found.chain if scope is self.view else scope.chain(tokens), limit, room
                ).take(None)
                for scope in self.scopes
            ]
            limit = min(part.point.position for part in parts)
            if all(part.point.position == limit for part in parts):
                caches = [cache for part in parts for cache in part.prompt_cache]
                return parts[0]._replace(prompt_cache=caches)

    def store(
        self,
        tokens: Tokens,
        prompt_cache: Sequence[Any],
        prompt_length: int = 0,
        along: Callable[[KeyChain], Along] = lambda chain: Along(),
        ended: Ended | None = None,
    ) -> Stored | None:
        """Store a sequence's caches, the target's and the draft's; None for another kind's. `along`
        are the pages stored while it grew, `ended` says how its answer ended."""
        stored, rest = None, prompt_cache
        for scope in self.scopes:
            size = len(rest) if scope is self.scopes[-1] else len(scope.fresh())
            own, rest = rest[:size], rest[size:]
            if scope.layout(own) is None:
                break
            chain = scope.chain(tokens)
            result = scope.commit(chain, own, prompt_length, *along(chain), ended=ended)
            stored = stored or Stored(chain, result)
        if stored is not None:
            self.siblings.add(tokens[: stored.result.tokens])
        return stored

    def prepare(self, tokens: Tokens, most: int, least: int) -> Preparation | None:
        """Return a preparation that computes at most `most` tokens of a coming prompt's beginning,
        None where fewer than `least` are stored."""
        found = find_along(self.view, self.siblings, tokens, len(tokens), wait=0.0)
        if found.position < least:
            return None
        return Preparation(self.view, tokens, most, (found.chain, found.position))

    def fresh(self) -> list[Any]:
        return [cache for scope in self.scopes for cache in scope.fresh()]


def lane_of(kinds: Iterable[Scopes], bits: Bits | None, salt: str | bytes | None) -> Lane:
    if bits is None:
        return Lane(each.scope(salt=salt) for each in kinds)
    # Tokens before `start` attended to dense keys: other bits than with packed ones from the first
    # on, as sessions have them.
    extra = {"quantized_kv_start": str(bits.start)}
    packed = {"kv_bits": bits.bits, "kv_group_size": bits.group_size}
    return Lane((each.scope(salt=salt, extra=extra, **packed) for each in kinds), bits.start)


def nearest(
    lanes: Iterable[Lane], tokens: Tokens, *, exact: bool = False
) -> tuple[Lane, StoredPrefix] | None:
    """Return where most of a prompt can be restored, even if that is nothing; None when no lane can
    serve. Reads no payload. With `exact` packed caches are not cut back to a length at which they
    would be dense."""
    found = [
        (lane, where)
        for lane in lanes
        if (where := lane.find(tokens)) is not None and not (exact and where.position < lane.start)
    ]
    return max(
        found,
        key=lambda pair: (pair[1].position, pair[1].position >= pair[0].start),
        default=None,
    )


def restored_from(
    lanes: Sequence[Lane],
    tokens: Tokens,
    asked: AskedRequest,
    *,
    useful: Callable[[int], object] = bool,
    exact: bool = False,
) -> Restored:
    """Restore as much of a prompt as there is, where that is `useful`, which is asked of its
    length; counts the request, and never raises. The caches of a miss have no owner."""
    began = time.perf_counter()
    try:
        restored = _restored(lanes, tokens, asked, useful, exact)
    except Exception as error:
        _log.exception("the prompt cache is passed by")
        restored = Restored([], missed(f"{reasons.ERROR}:{type(error).__name__}"))
    point, seconds = restored.point, time.perf_counter() - began
    asked.remote_tokens = restored.remote_tokens
    asked.restored(point.position, restored.cold_tokens, seconds, point.reason)
    return restored


def _restored(
    lanes: Sequence[Lane],
    tokens: Tokens,
    asked: AskedRequest,
    useful: Callable[[int], object],
    exact: bool,
) -> Restored:
    if len(tokens) < 2:
        return Restored([], missed(reasons.TOO_SHORT))
    found = nearest(lanes, tokens, exact=exact)
    if found is None:
        unsupported = lanes[0].view.unsupported_reason if lanes else None
        return Restored([], missed(unsupported or reasons.ABSENT))
    lane, where = found
    asked.walked = where.walked
    restored = Restored([], missed(where.reason))
    if useful(where.position):
        restored = lane.restore(where, len(tokens) + ROOM_TOKENS)
    point = restored.point
    if not useful(point.position):
        restored = Restored([], point)
        point = missed(point.reason or reasons.NO_RESTORE_POINT)
    elif point.position == where.position:
        point = point._replace(reason=where.reason)
    return restored._replace(point=point._replace(wanted_state=where.wanted_state))


def packed_as(prompt_cache: Sequence[Any], start: int) -> Bits | None:
    """Return how caches are packed, None when none is."""
    for cache in prompt_cache:
        if is_cache(cache, "QuantizedKVCache"):
            return Bits(int(cache.bits), int(cache.group_size), start)
    return None


class Furthest(NamedTuple):
    """How far a prompt can be restored, and the keys by which that was found, None without any."""

    point: RestorePoint
    chain: KeyChain | None


def furthest(lanes: Iterable[Lane], tokens: Tokens, *, asks: bool) -> Furthest:
    """Return the lookup of the lane that has most of a prompt; with `asks` other machines are asked
    too. Any thread may ask."""
    best = Furthest(RestorePoint(0, {}, None, 0), None)
    for lane in lanes:
        if lane.view.supported:
            chain = lane.view.chain(tokens)
            point = lane.view.find(chain, len(tokens) - 1, asks=asks)
            if best.chain is None or point.position > best.point.position:
                best = Furthest(point, chain)
    return best


def digest_of(tokens: Sequence[int]) -> bytes:
    """Return 16 bytes that stand for a prompt in a table of this process."""
    return hashlib.blake2b(as_tokens(list(tokens)).tobytes(), digest_size=16).digest()


def stand_in(digest: bytes) -> int:
    """Return a negative id, which no vocabulary has, with as many bits of a digest as it holds. It
    stands in keys for a token and for the image or sound beside it."""
    return -1 - (int.from_bytes(digest[:8], "little") >> 1)


def model_name(model_path: str | None) -> str:
    """Return what names a model in a namespace: a directory's own name, or the hub id. A model that
    is moved keeps its cache; its weights are part of the identity anyway."""
    if not model_path:
        return ""
    path = Path(model_path).expanduser()
    return path.resolve().name if path.is_dir() else str(model_path)
