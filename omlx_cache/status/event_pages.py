"""What is answered to who asks a log for events, on the control socket and on the status port."""

import time
from collections.abc import Collection
from typing import Any

from omlx_cache.status.kv_events import kv_batch, kv_events
from omlx_cache_storage.events import EventLog


def events_document(
    log: EventLog, after: int | None, limit: int, kinds: Collection[str] | None = None
) -> dict[str, Any]:
    """Return `limit` of the events beyond `after`, oldest first, or without it the latest ones;
    `upto` for the next question, how many were `dropped` unseen, when the log `began`, and how many
    there have been of each kind."""
    page = log.page(after, limit, kinds)
    return {
        "upto": page.upto,
        "dropped": page.dropped,
        "began": page.began,
        "events": [event.to_dict() for event in page.events],
        "counts": dict(log.counts()),
    }


def kv_document(log: EventLog, after: int | None, limit: int) -> dict[str, Any]:
    """Return the same for a router: the events as one batch, or none where nothing happened."""
    page = log.page(after, limit)
    found = kv_events(page.events, log.paged(), gap=page.dropped > 0)
    at = page.events[-1].at if page.events else time.time()
    return {
        "upto": page.upto,
        "dropped": page.dropped,
        "began": page.began,
        "batches": [kv_batch(page.upto, at, found)] if found else [],
    }
