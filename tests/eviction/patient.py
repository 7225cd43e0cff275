"""Policies, tiers and stores whose patience a test sets."""

from omlx_cache import BlockStore
from omlx_cache_storage.eviction.keep import Keep, Learned
from omlx_cache_storage.hot_page import Reservation
from omlx_cache_storage.page import Page

PATIENCE_SECONDS = 30.0


def patient(_learned: Learned | None = None) -> Keep:
    """Return a policy that gives no page up for half a minute, and will not soon learn another."""
    policy = Keep()
    policy.patience_ns = int(PATIENCE_SECONDS * 1e9)
    return policy


def offer(store: BlockStore, page: Page) -> Reservation:
    """Admit and put one page as a commit does that does not wait; return what became of it."""
    room = store.admit(page.meta.nbytes, position=page.meta.position)
    if room:
        store.put(page, room, store.stamp())
    return room
