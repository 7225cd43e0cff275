"""Events as prefix-aware routers expect them: shaped as vLLM's KV events are.

`block_hashes` are block keys in hexadecimal. `token_ids` is empty: prompts are private, and a
router that knows the prompt computes its keys by itself. `lora_id` is None: an adapter is part of
the namespace, which stands beside them.

A block counts as stored in a medium when its page of the paged group is. Each of them is needed, so
no restore goes further than the last. Pages of windows and recurrent state come and go at some
positions only; only a lookup finds one where a prompt parts. Of a model without a paged group any
page counts, and the first that leaves ends it.
"""

import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from omlx_cache_storage.events import Event, EventLog
from omlx_cache_storage.page import PAGED

MEDIA = {"hot": "CPU", "cold": "STORAGE"}
"""The field's words for where a block is: memory that restores at once, and the disk.

A page of a remote store is no event of one machine. All machines that share the store have it
alike, so it helps to choose none of them. The store does not tell when it evicts a page.
"""

KvEvent = dict[str, Any]


def events_document(
    log: EventLog, after: int | None, limit: int, kinds: Collection[str] | None = None
) -> dict[str, Any]:
    """Return `limit` of the events beyond `after`, oldest first, or without it the latest ones,
    with `upto` for the next question, how many were `dropped` unseen, when the log `began`, and the
    counts by kind."""
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
        # `seq` is the number of the last event that is in the batch or was left out.
        "batches": [{"seq": page.upto, "ts": at, "events": found, "data_parallel_rank": None}]
        if found
        else [],
    }


def kv_events(
    events: Iterable[Event], paged: Collection[bytes], *, gap: bool = False
) -> Sequence[KvEvent]:
    """Return events in a router's form; a pure function. `paged` are the namespaces of models that
    have a paged group. With `gap` events were missed: the router must first forget this store's
    blocks."""
    found: list[KvEvent] = [_cleared(medium) for medium in MEDIA.values()] if gap else []
    for event in events:
        one = _kv_event(event, paged)
        if one is not None and not _extends(found, one):
            found.append(one)
    return found


def _kv_event(event: Event, paged: Collection[bytes]) -> KvEvent | None:
    medium = MEDIA.get(event.tier)
    if medium is None:
        return None
    if event.kind in ("cleared", "resynced"):
        return _cleared(medium, event.namespace.hex())
    if event.group != PAGED and event.namespace in paged:
        return None
    if event.kind == "stored":
        return {
            "type": "BlockStored",
            "block_hashes": [event.key.hex()],
            "parent_block_hash": event.to_dict()["parent"],
            "token_ids": [],
            "block_size": event.tokens,
            "lora_id": None,
            "medium": medium,
            "namespace": event.namespace.hex(),
        }
    if event.kind in ("evicted", "removed"):
        return {
            "type": "BlockRemoved",
            "block_hashes": [event.key.hex()],
            "medium": medium,
            "namespace": event.namespace.hex(),
        }
    return None


def _cleared(medium: str, namespace: str = "") -> KvEvent:
    return {"type": "AllBlocksCleared", "medium": medium, "namespace": namespace or None}


def _extends(found: Sequence[KvEvent], new: KvEvent) -> bool:
    """Put a block behind the last event's blocks of its own chain, where that is possible."""
    alike = ("type", "medium", "namespace", "block_size")
    if not found or any(found[-1].get(name) != new.get(name) for name in alike):
        return False
    hashes, parent = found[-1].get("block_hashes"), new.get("parent_block_hash")
    if hashes is None:
        return False
    if new["type"] == "BlockStored" and not (parent and hashes[-1].startswith(parent)):
        return False
    hashes += new["block_hashes"]
    return True
