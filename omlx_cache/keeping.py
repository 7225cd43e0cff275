"""What a scheduler asks to be kept, or no longer: a pinned prefix, a conversation that is over.

Hints are taken as callers give them: what is none is passed over and counted, and nothing raises.
"""

from collections.abc import Callable
from functools import partial

from omlx_cache.adapters.base import PAGED
from omlx_cache.commit.points import needed
from omlx_cache.restore.lookup import first_pages
from omlx_cache.scope import Scope
from omlx_cache_storage.hints import MOST_KEYS, Ended, Pinned, Priority, is_ended, is_priority
from omlx_cache_storage.keys import BlockKey, KeyChain
from omlx_cache_storage.page import PageId
from omlx_cache_storage.stats import Counters

NOTHING = Pinned(0, 0, 0)


class Pin:
    """A prefix that is not evicted until its time is over, or `unpin`; losing the object ends
    nothing, and a restart neither: the directory's `pins.json` has it.

    `found_tokens` of it could be restored when it was pinned. `memory` and `disk` (None without
    one) say how many of its pages each had then, and how many of them, root first, and bytes are
    pinned: all pins together take half of a tier at most. `reason` says why that is less than there
    is, or nothing; None where all is pinned that there is.
    """

    def __init__(
        self,
        reason: str | None = None,
        *,
        found_tokens: int = 0,
        memory: Pinned = NOTHING,
        disk: Pinned | None = None,
        unpin: Callable[[], None] = lambda: None,
    ) -> None:
        self.reason = reason
        self.found_tokens = found_tokens
        self.memory = memory
        self.disk = disk
        self._unpin = unpin

    def unpin(self) -> None:
        """End it; any thread, any number of times."""
        self._unpin()


def pin(scope: Scope, chain: KeyChain, seconds: float) -> Pin:
    """Pin what a restore to the end of a chain uses, now or once it is stored; reads no payload."""
    store = scope.store
    # Returns at once: what only others have cannot be pinned here.
    found = scope.find(chain, len(chain), wait=0.0)
    pages = dict.fromkeys(found.root_first)
    pages |= dict.fromkeys(needed(chain, scope.groups, len(chain)))
    record, tiers = store.pin(chain.namespace, list(pages), seconds)
    if record is None:
        return Pin(f"all pins together name {MOST_KEYS:,} blocks at most")
    memory, disk = tiers[0], tiers[1] if len(tiers) > 1 else None
    return Pin(
        _why_less("memory", memory) or _why_less("the disk's budget", disk),
        found_tokens=found.position,
        memory=memory,
        disk=disk,
        unpin=partial(store.unpin, record),
    )


def _why_less(place: str, pinned: Pinned | None) -> str | None:
    if pinned is None or pinned.pages == pinned.found_pages:
        return None
    return (
        f"all pins together take half of {place} at most: {pinned.pages} of "
        f"{pinned.found_pages} pages are pinned there"
    )


def retire(scope: Scope, chain: KeyChain) -> int:
    """Make the pages of a chain the first to be evicted, down to the last place where another
    sequence leaves it, or one that is being computed; return the tokens above it, which stay as
    they were. Reads no payload."""
    store, size = scope.store, chain.block_size
    bounds = range(0, len(chain) + 1, size)
    parents = {_key(chain, bound): bound for bound in bounds}
    tails = {tail for tail in store.tails_of(list(parents)) if tail.position <= len(chain)}
    ends = sorted({*PAGED.page_ends(len(chain), size), *(tail.position for tail in tails)})
    left = store.branches({*parents, *(chain.key(end) for end in ends)})
    kept = max([parents.get(key, 0) for key in left] + [store.flights.shared(chain)])
    groups = {*(group.name for group in scope.groups), *(tail.group for tail in tails)}
    deep = {PageId(chain.key(end), group) for end in ends if end > kept for group in groups}
    # Any other sequence that begins alike needs these, wherever it leaves this one.
    store.demote(deep.difference(first_pages(chain, scope.groups)))
    return kept


def _key(chain: KeyChain, bound: int) -> BlockKey:
    return chain.key(bound) if bound else chain.namespace


MOST_PIN_SECONDS = 10 * 365 * 86_400


def ended_or_none(value: object, counters: Counters) -> Ended | None:
    """Return how an answer ended; None, and counted, for a word that says nothing here."""
    if value is None or is_ended(value):
        return value
    counters.add(ignored_hints=1)
    return None


def priority_or_normal(value: object, counters: Counters) -> Priority:
    """Return a priority; normal, and counted, for what is none."""
    if is_priority(value):
        return value
    counters.add(ignored_hints=1)
    return "normal"


def seconds_or_none(value: object, counters: Counters) -> float | None:
    """Return how long a pin lasts, ten years at most; None, and counted, for what is no time."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and isinstance(value, int | float) and value > 0:
        return float(min(value, MOST_PIN_SECONDS))
    counters.add(ignored_hints=1)
    return None
