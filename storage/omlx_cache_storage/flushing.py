"""Flushing: until the disk has what memory held, however much others store meanwhile."""

import time
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.page import PageId, PageMeta


def rooted(pages: Iterable[PageId], lacking: Callable[[PageId], PageMeta | None]) -> list[PageId]:
    """Return pages, before each those of its chain that lead to it and that the disk lacks too;
    each page once.

    `lacking` describes a page of memory that the disk lacks, None for any other: what leads to a
    page that the disk has is there as well, and looked at no further.
    """
    found: dict[PageId, None] = {}
    for page in pages:
        line = []
        at = page
        while at not in found and (meta := lacking(at)) is not None:
            line.append(at)
            at = meta.before
        found.update(dict.fromkeys(reversed(line)))
    return list(found)


STARVED_ROUNDS = 32
"""How often a flush finds the queue full of what others offer, and none of its own pages taken,
before it gives up: without a deadline it would go on for as long as they do."""


class WriteQueue(Protocol):
    """What a flush asks of the writer."""

    @property
    def setbacks(self) -> int: ...
    @property
    def stopped(self) -> bool: ...
    def flush(self, timeout: float | None) -> bool: ...


def flush(
    hot: HotTier,
    writer: WriteQueue,
    known: Collection[PageId],
    offer_each: Callable[[Iterable[PageId]], bool],
    timeout: float | None,
) -> bool:
    """Block until the disk has what was queued and what it lacks of `known` pages; False after
    `timeout` seconds, when the disk refused a page, or when others keep the queue full.

    `offer_each` queues pages in order, and says whether all of them had room.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    retried = False
    starved, fewest = 0, len(known) + 1
    while True:
        # Queued before the barrier: a page that the idle writer takes up behind it would
        # look durable, and be pending.
        queued = offer_each(unwritten(hot, known))
        setbacks = writer.setbacks
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not writer.flush(remaining):
            return False
        failing = writer.setbacks > setbacks
        left = unwritten(hot, known)
        if failing and (retried or not left):
            return False
        pending = _pending(hot, known)
        if writer.stopped or (queued and not left and not pending):
            return not left
        retried = retried or failing
        starved = starved + 1 if len(left) + pending >= fewest else 0
        if starved >= STARVED_ROUNDS:
            return False
        fewest = min(fewest, len(left) + pending)


def unwritten(
    hot: HotTier,
    known: Collection[PageId] | None = None,
    *,
    superseded: bool = True,
) -> list[PageId]:
    """Return pages, of `known` ones, that the disk lacks, root first; without `superseded` only
    those that are to be kept."""
    named = hot.dirty(superseded=superseded)
    return [page for page in reversed(named) if known is None or page in known]


def _pending(hot: HotTier, known: Collection[PageId]) -> int:
    """Count the pages of `known` ones that are queued: the disk lost them while the flush
    waited."""
    infos = (hot.info(page) for page in known)
    return sum(info is not None and info.tier == "pending" for info in infos)
