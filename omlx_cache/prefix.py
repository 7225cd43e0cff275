"""PrefixCache: one model's view of a store."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from typing import NamedTuple, Unpack

from omlx_cache.adapters.base import PAGED
from omlx_cache.arrays.mlxio import allocate_payload
from omlx_cache.begun import DEFAULT_NEW_TOKENS, Begun, flat_tokens
from omlx_cache.commit.committer import needed
from omlx_cache.preparation import Preparation
from omlx_cache.requests.explainer import Walked
from omlx_cache.requests.explanation import Explanation
from omlx_cache.restore.lookup import first_pages
from omlx_cache.scope import Scope, ScopeOptions, Scopes
from omlx_cache.session import Session
from omlx_cache_storage.calls import SECONDS, is_seconds, is_whole, uninterrupted
from omlx_cache_storage.keys import KeyChain, as_tokens
from omlx_cache_storage.page import PageId
from omlx_cache_storage.pins import MOST_KEYS, Pinned
from omlx_cache_storage.prefetch import Prefetch

NOTHING = Pinned(0, 0, 0)
MOST_PIN_SECONDS = 10 * 365 * 86_400


class PageLocation(NamedTuple):
    """One page of a restorable prefix: the tokens it covers and the tier that has it."""

    key: str
    group: str
    start: int
    stop: int
    nbytes: int
    tier: str


@dataclass(frozen=True, slots=True)
class Lookup:
    """Where a prefix lies. `cached_tokens` can be restored; `matched_tokens` are known.
    `explanation` says why it is not more, and `str()` of it in words."""

    cached_tokens: int
    matched_tokens: int
    miss_reason: str | None
    pages: tuple[PageLocation, ...]
    explanation: Explanation | None = None


@dataclass(frozen=True, slots=True)
class Pin:
    """A prefix that is not evicted until its time is over, or `unpin` (any thread, any number of
    times). A lost object and a restart end nothing: the directory's `pins.json` has it.

    `found_tokens` of it could be restored when it was pinned. `memory` and `disk` (None without
    one) say how many of its pages each had then, and how many, root first, and bytes are pinned.
    All pins together take half of a tier at most. `reason` says why that is less than there is;
    None where all is pinned.
    """

    reason: str | None = None
    found_tokens: int = 0
    memory: Pinned = NOTHING
    disk: Pinned | None = None
    unpin: Callable[[], None] = field(default=lambda: None, repr=False)


class PrefixCache(Scopes):
    """Sessions, lookups and prefetches for one model; evaluates samples of its weights once. On a
    GPU it computes one token, to compile a TurboQuant codec's kernels for it: seconds, the first
    time on a machine.

    `model_id` (text, or a path) names the model for people; `adapter` is part of its identity (a
    directory is fingerprinted). `make_cache` replaces mlx-lm's `make_prompt_cache(model)`, `policy`
    the rule for restore points, `codec_policy` (a name, or a `CodecPolicy`) the `codec` settings.
    The weights must not change while the object lives: make a new one after loading an adapter.

    Methods that look at sequences take the keywords of `ScopeOptions`. A model with a cache class
    that no adapter reads gets sessions that miss, and stores nothing: `unsupported_reason` names
    the class.
    """

    @uninterrupted
    def session(
        self,
        tokens: Sequence[int],
        *,
        max_new_tokens: int | None = DEFAULT_NEW_TOKENS,
        begun: Begun | None = None,
        deadline: float | None = None,
        priority: str = "normal",
        **options: Unpack[ScopeOptions],
    ) -> Session:
        """Restore a prompt's cached prefix and return the session; never raises for a miss.

        Waits for pages that are not in memory, `deadline` seconds at most, and without one until
        the disk gives no byte for two. The model computes the tokens whose pages have not come by
        then. `begun` is what `begin` returned for these tokens and options, and without a
        `deadline` its own counts. Restored buffers have room for the prompt and `max_new_tokens`
        more (None: 256; at most 65,536). `priority` is a hint, `low`, `normal` or `high`: its pages
        count as used ten minutes earlier or later than they are. With `begun` it is that one's.
        """
        scope, arguments = self.scope(**options), self.store.arguments
        deadline = arguments.known("deadline", deadline, is_seconds, None, SECONDS)
        if isinstance(begun, Begun):
            if begun.is_for(scope, tokens):
                return Session(begun, begun.deadline if deadline is None else deadline)
            begun.cancel()
        elif begun is not None:
            arguments.ignore("begun", begun, "what begin() returned")
        return Session(Begun(scope, tokens, max_new_tokens, priority), deadline)

    @uninterrupted
    def begin(
        self,
        tokens: Sequence[int],
        *,
        max_new_tokens: int | None = DEFAULT_NEW_TOKENS,
        priority: str = "normal",
        **options: Unpack[ScopeOptions],
    ) -> Begun:
        """Begin to read a prompt's cached prefix into buffers of its own; returns at once.

        Callable from any thread, while others compute. `session(tokens, begun=...)` takes it over
        on the model's thread. Raises TypeError and ValueError for options that are none only.
        """
        begun = Begun(self.scope(**options), tokens, max_new_tokens, priority)
        begun.start()
        return begun

    @uninterrupted
    def lookup(self, tokens: Sequence[int], **options: Unpack[ScopeOptions]) -> Lookup:
        """Return where a prefix lies, page by page, and why it ends there. Reads no payload, moves
        nothing. Raises ValueError for tokens that are not integers."""
        scope = self.scope(**options)
        array = as_tokens(tokens)
        if not scope.supported:
            return Lookup(0, 0, self.unsupported_reason, ())
        chain = scope.chain(array)
        point = scope.find(chain, max(0, len(array) - 1))
        told = self.store.requests.explainer.explain(
            Walked(chain, scope.namespace.groups, point.matched, point.lacking),
            len(array),
            point.position,
            point.reason,
        )
        pages = tuple(
            PageLocation(
                use.page.key.hex(),
                group.name,
                use.info.position - use.info.held,
                use.info.position,
                use.info.nbytes,
                use.info.tier,
            )
            for group, uses in point.uses.items()
            for use in uses
        )
        return Lookup(point.position, point.matched, point.reason, pages, told)

    @uninterrupted
    def prefetch(self, tokens: Sequence[int], **options: Unpack[ScopeOptions]) -> Prefetch:
        """Begin to read a prefix's cold pages into the hot tier, while the request is queued.
        Raises ValueError for tokens that are not integers."""
        scope = self.scope(**options)
        array = as_tokens(tokens)
        limit = max(0, len(array) - 1)
        pages = scope.find(scope.chain(array), limit).root_first if scope.supported else []
        return self.store.prefetch(pages, allocate_payload)

    @uninterrupted
    def prepare(
        self, tokens: Sequence[int], *, most: int | None = None, **options: Unpack[ScopeOptions]
    ) -> Preparation:
        """Return a preparation of a coming prompt's beginning, which is computed while no request
        is: the first `most` tokens that are not cached, all by default.

        Any thread may call, and nothing begins before the model's thread steps the preparation.
        Tokens that are none, a model that is not supported and a store that keeps nothing in memory
        prepare nothing.
        """
        most = self.store.arguments.known("most", most, is_whole, None, "a number of tokens")
        return Preparation(self.scope(**options), tokens, most)

    @uninterrupted
    def pin(self, tokens: Sequence[int], ttl: float, **options: Unpack[ScopeOptions]) -> Pin:
        """Pin a prefix for `ttl` seconds, as far as half of each tier's budget holds it, the root
        first; returns at once, reads no payload.

        The pin counts in this process's memory at once, and a moment later for all processes of the
        directory and over a restart. Later pages of the prefix are pinned when they are stored.
        Invalid tokens, an invalid `ttl`, and an unsupported model pin nothing: `reason` says so,
        and also when not all pages have room.
        """
        scope, store = self.scope(**options), self.store
        if store.closed:
            return Pin("the store is closed")
        if isinstance(ttl, bool) or not isinstance(ttl, Real) or not ttl > 0:
            store.arguments.ignore("ttl", ttl, f"{SECONDS} above 0")
            return Pin(f"ttl={ttl!r} is no number of seconds")
        chain = _chain(scope, tokens)
        if chain is None:
            return Pin(scope.unsupported_reason or "give a flat list of tokens, a block or more")
        # Returns at once: what only others have cannot be pinned here.
        found = scope.find(chain, len(chain), wait=0.0)
        pages = [*found.root_first, *needed(chain, scope.groups, len(chain))]
        record, tiers = store.pin(
            chain.namespace, list(dict.fromkeys(pages)), float(min(ttl, MOST_PIN_SECONDS))
        )
        if record is None:
            return Pin(f"all pins together name {MOST_KEYS:,} blocks at most")
        memory, disk = tiers[0], tiers[1] if len(tiers) > 1 else None
        part = (
            f"nothing is pinned: give at least {chain.block_size:,} tokens, a block; it has "
            f"{len(chain):,}"
            if found.position == 0 and len(chain) < chain.block_size
            else None
        )
        return Pin(
            _why_less("memory", memory) or _why_less("the disk's budget", disk) or part,
            found_tokens=found.position,
            memory=memory,
            disk=disk,
            unpin=partial(store.unpin, record),
        )

    @uninterrupted
    def retire(self, tokens: Sequence[int], **options: Unpack[ScopeOptions]) -> int:
        """Mark a conversation as over for good: its pages that no other sequence uses are evicted
        before all others. Returns how many of its first tokens stay as they were.

        `tokens` are all of it, the last answer too: of a prompt alone the answer's pages stay.
        Deletes nothing, and reads no payload; the next request for it makes it as good as any
        other. Invalid tokens, and an unsupported model, retire nothing.
        """
        scope, store = self.scope(**options), self.store
        chain = _chain(scope, tokens)
        if chain is None or store.closed:
            return 0
        size = chain.block_size
        bounds = range(0, len(chain) + 1, size)
        parents = {chain.key(at) if at else chain.namespace: at for at in bounds}
        tails = {tail for tail in store.tails_of(list(parents)) if tail.position <= len(chain)}
        ends = {*PAGED.page_ends(len(chain), size), *(tail.position for tail in tails)}
        # The last place where another sequence leaves it, or one that is being computed.
        left = store.branches({*parents, *(chain.key(end) for end in ends)})
        stays = max([parents.get(key, 0) for key in left] + [store.flights.shared(chain)])
        groups = {*(group.name for group in scope.groups), *(tail.group for tail in tails)}
        keys = [chain.key(end) for end in ends if end > stays]
        deep = {PageId(key, group) for key in keys for group in groups}
        # Any other sequence that begins alike needs these, wherever it leaves this one.
        store.demote(deep.difference(first_pages(chain, scope.groups)))
        return stays


def _chain(scope: Scope, tokens: Sequence[int]) -> KeyChain | None:
    array = flat_tokens(tokens, scope.store.arguments)
    return scope.chain(array) if scope.supported and len(array) else None


def _why_less(place: str, pinned: Pinned | None) -> str | None:
    if pinned is None or pinned.pages == pinned.found_pages:
        return None
    return (
        f"all pins together take half of {place} at most: {pinned.pages} of "
        f"{pinned.found_pages} pages are pinned there"
    )
