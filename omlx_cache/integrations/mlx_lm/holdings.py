"""The lines of a server about its cache: its pages at the start, those on the disk at the end."""

from collections import Counter
from typing import NamedTuple

from omlx_cache.identity.namespace import installed
from omlx_cache.reasons import NO_ROOM
from omlx_cache.settings.sizes import counted, format_size
from omlx_cache.store import BlockStore
from omlx_cache_storage.breaker import UNAVAILABLE
from omlx_cache_storage.documents import label, versions
from omlx_cache_storage.hot_page import PageState
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.stats import WriterUsage


def inventory(store: BlockStore, model: str) -> str:
    """Return the store's holdings, the part of `model` and of other versions, and the budgets.
    Reads a document for each namespace, and no page."""
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
    counts = Counter(page.namespace for page in pages)
    return (
        f"{counted(len(pages), 'page')}, {format_size(cold.nbytes)} in {store.cold_dir}"
        f"{_whose(store, counts, model)}"
    )


def _whose(store: BlockStore, counts: Counter[BlockKey], model: str) -> str:
    own = stale = 0
    for namespace, count in counts.items():
        document = store.readable_document(namespace)
        needed = versions(document)
        if needed and needed != installed():
            stale += count
        elif model and label(document) == model:
            own += count
    said = [f"{own:,} of {model}" if own else f"none of {model} yet"] * bool(model)
    said += [f"{stale:,} of other versions: omlx-cache rm --stale"] * bool(stale)
    return f" ({', '.join(said)})" if said else ""


def _grants(store: BlockStore) -> str:
    settings, cold = store.settings, store.stats().cold
    memory = f"memory {format_size(settings.hot_bytes)}"
    if cold is None:
        return memory
    allowed = store.allowance()
    own = None if allowed is None else allowed.own_limit_bytes
    shared = "" if own is None else f" ({format_size(own)} by this process)"
    return f"{memory}, disk {format_size(cold.limit_bytes)}{shared}"


class Unwritten(NamedTuple):
    """The pages of memory only, those of them that the disk evicted, and the writer's counts."""

    pages: int
    nbytes: int
    tokens: int
    writer: WriterUsage | None
    evicted_pages: int = 0


class LastWords(NamedTuple):
    """One line for the log; `complete` says that nothing is missing on the disk."""

    complete: bool
    text: str


def unwritten(store: BlockStore) -> Unwritten:
    """Return what would be lost if the process ended now; ask before `close`, which forgets it."""
    pages = store.in_memory_only()
    tokens: Counter[tuple[bytes, str]] = Counter()
    for page in pages:
        tokens[page.namespace, page.id.group] += page.held
    covered: dict[bytes, int] = {}
    for (namespace, _group), count in tokens.items():
        # Layer groups cover the same tokens, so the best stocked one counts, not their sum.
        covered[namespace] = max(covered.get(namespace, 0), count)
    return Unwritten(
        len(pages),
        sum(page.nbytes for page in pages),
        sum(covered.values()),
        store.stats().writer,
        sum(page.state is PageState.EVICTED for page in pages),
    )


def last_words(store: BlockStore, left: Unwritten, clean: bool) -> LastWords:
    """Return the last line about a closed store: `left` was dirty before, `close` said `clean`."""
    cold = store.stats().cold
    if cold is None:
        kept = f" {_amount(left)} end with this process." if left.pages else ""
        return LastWords(True, f"Nothing is on the disk: hot_cache_only.{kept}")
    setbacks = _setbacks(store, left, clean)
    gone = cold.state.startswith(UNAVAILABLE)
    complete = clean and not (left.pages or setbacks or gone)
    trouble = "" if cold.state == "ok" else f" (cold tier: {cold.state})"
    lost = [f"{_amount(left)} were in memory only"] * bool(left.pages)
    counts = [f"since the start {', '.join(setbacks)}"] * bool(setbacks)
    stock = f"{store.cold_dir} has {counted(cold.pages, 'page')}, {format_size(cold.nbytes)}"
    if complete:
        said = "Everything is on the disk"
    elif gone and not cold.pages:
        said, stock = "Nothing is on the disk", f"{store.cold_dir} cannot be used"
    elif left.pages or gone or not clean:
        said = "Not everything is on the disk"
    else:
        # Rejected or dropped pages may have been written later, or have left memory too.
        said = "Perhaps not everything is on the disk"
    return LastWords(complete, f"{said}{trouble}: {'; '.join([*lost, *counts, stock])}.")


def _setbacks(store: BlockStore, left: Unwritten, clean: bool) -> list[str]:
    """Return what kept pages from the disk, and how often: one page several times, perhaps, and
    written later."""
    writer, settings, allowed = left.writer, store.settings, store.allowance()
    if writer is None:
        return []
    # How far the directory may fill up before this process stops writing.
    limit = settings.cold_bytes
    if allowed is not None:
        limit = allowed.own_limit_bytes or allowed.limit_bytes
    causes = {
        "still pending when the time was over": 0 if clean else writer.pending_pages,
        f"evicted from the disk for want of cold_bytes ({format_size(limit)})": left.evicted_pages,
        f"refused for want of cold_bytes ({format_size(limit)})": writer.refused_pages,
        f"beyond daily_write_bytes ({format_size(settings.daily_write_bytes)})": (
            writer.rationed_pages
        ),
        "dropped by a full queue or a disk at rest": writer.dropped_pages,
        "refused by a full or failing disk": writer.failed_pages,
        "not stored for want of room": store.stats().requests.skips.get(NO_ROOM, 0),
    }
    return [
        f"{counted(count, 'page')} {'were' if count != 1 else 'was'} {why}"
        for why, count in causes.items()
        if count
    ]


def _amount(left: Unwritten) -> str:
    pages, tokens = counted(left.pages, "page"), counted(left.tokens, "token")
    return f"{pages}, {format_size(left.nbytes)}, {tokens}"
