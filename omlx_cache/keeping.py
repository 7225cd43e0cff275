"""What a scheduler asks to be kept, or no longer: a pinned prefix, a conversation that is over."""

from omlx_cache.adapters.base import PAGED
from omlx_cache.commit.order import needed
from omlx_cache.restore.lookup import first_pages
from omlx_cache.scope import Scope
from omlx_cache.store import BlockStore
from omlx_cache_storage.hints import Pinned
from omlx_cache_storage.keys import BlockKey, KeyChain
from omlx_cache_storage.page import PageId

NOTHING = Pinned(0, 0, 0)


class Pin:
    """A prefix that is not evicted until its time is over, or `unpin`; losing the object ends
    nothing.

    `found_tokens` of it could be restored when it was pinned. `memory` and `disk` (None without
    one) say how many of its pages each had then, and how many of them, root first, and bytes are
    pinned: all pins together take half of a tier at most.
    """

    def __init__(
        self,
        store: BlockStore | None = None,
        number: int = 0,
        found_tokens: int = 0,
        memory: Pinned = NOTHING,
        disk: Pinned | None = None,
    ) -> None:
        self.found_tokens = found_tokens
        self.memory = memory
        self.disk = disk
        self._store = store
        self._number = number

    def unpin(self) -> None:
        """End it; any thread, any number of times."""
        if self._store is not None:
            self._store.unpin(self._number)


def pin(scope: Scope, chain: KeyChain, seconds: float) -> Pin:
    """Pin what a restore to the end of a chain uses, now or once it is stored; reads no payload."""
    store = scope.store
    # Returns at once: what only others have cannot be pinned here.
    found = scope.find(chain, len(chain), wait=0.0)
    pages = dict.fromkeys(needed(chain, scope.groups, len(chain)))
    pages |= dict.fromkeys(found.root_first)
    made = store.pin(list(pages), seconds)
    memory, *disk = made.tiers
    return Pin(store, made.number, found.position, memory, disk[0] if disk else None)


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
