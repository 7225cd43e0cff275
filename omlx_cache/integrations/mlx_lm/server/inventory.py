"""What a server finds in its cache when it starts, in one line for its log."""

from collections import Counter
from functools import partial

from omlx_cache.identity.parts import installed
from omlx_cache.settings.derived import ANSWER_SECONDS
from omlx_cache.settings.sizes import format_size
from omlx_cache.store import BlockStore
from omlx_cache_storage.documents import label, versions
from omlx_cache_storage.eviction.keep import SUPERSEDED_NS, age_seconds
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.readers import within

_UNITS = ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


def inventory(store: BlockStore, model: str) -> str:
    """Return what the store holds, what of it is of `model` and what of other versions, and what it
    is granted. Reads a document for each namespace, and no page."""
    return f"{_holdings(store, model)}; {_grants(store)}"


def _holdings(store: BlockStore, model: str) -> str:
    cold = store.stats().cold
    if cold is None or store.cold is None:
        return "nothing is kept on the disk (hot_cache_only)"
    if cold.state != "ok":
        return f"nothing is read from {store.cold_dir}"
    pages = store.cold.listing()
    if not pages:
        return f"no pages in {store.cold_dir} yet"
    stamps = [page.used_ns for page in pages if page.used_ns > SUPERSEDED_NS]
    age = age_seconds(min(stamps, default=SUPERSEDED_NS))
    oldest = "" if age is None else f", oldest {period(age)}"
    counts = Counter(page.namespace for page in pages)
    return (
        f"{len(pages):,} page{'s' * (len(pages) != 1)}, {format_size(cold.nbytes)} "
        f"in {store.cold_dir}{oldest}{_whose(store, counts, model)}"
    )


def _whose(store: BlockStore, counts: Counter[BlockKey], model: str) -> str:
    """Return in parentheses how many pages are of the model, and how many nobody here restores."""
    own = stale = 0
    for namespace, count in counts.items():
        document = store.readable_document(namespace)
        needed = versions(document)
        if needed and needed != installed():
            stale += count
        elif model and label(document) == model:
            own += count
    said = [f"{own:,} of {model}"] * bool(model)
    said += [f"{stale:,} of other versions: omlx-cache prune --stale"] * bool(stale)
    return f" ({', '.join(said)})" if said else ""


def _grants(store: BlockStore) -> str:
    settings, cold = store.settings, store.stats().cold
    memory = f"memory {format_size(settings.hot_bytes)}"
    if cold is None:
        return memory
    ask = partial(settings.machine.disk, settings.cold_dir)
    disk = within(ask, "omlx-cache-settings", ANSWER_SECONDS, None)
    allowed = store.allowance()
    own = None if allowed is None else allowed.own_limit_bytes
    shared = "" if own is None else f" ({format_size(own)} by this process)"
    free = "" if disk is None else f" of {format_size(disk.free)} free"
    return f"{memory}, disk {format_size(cold.limit_bytes)}{shared}{free}"


def period(seconds: float) -> str:
    """Return how long something is ago, in its largest unit: `3 days`."""
    size, unit = next((pair for pair in _UNITS if seconds >= pair[0]), _UNITS[-1])
    count = int(seconds // size)
    return f"{count} {unit}{'s' * (count != 1)}"
