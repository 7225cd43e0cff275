"""What a server says of its cache when it ends: what is on the disk, and what is not."""

from collections import Counter
from typing import NamedTuple

from omlx_cache.reasons import NO_ROOM
from omlx_cache.settings.sizes import format_size
from omlx_cache.store import BlockStore
from omlx_cache_storage.cold.health import UNAVAILABLE
from omlx_cache_storage.stats import WriterUsage


class Unwritten(NamedTuple):
    """What memory holds and the disk does not, and the counts of the writer at that moment."""

    pages: int
    nbytes: int
    tokens: int
    writer: WriterUsage | None


class LastWords(NamedTuple):
    """One line for the log; `complete` says that nothing is missing on the disk."""

    complete: bool
    text: str


def unwritten(store: BlockStore) -> Unwritten:
    """Return what would be lost if the process ended now; ask before `close`, which forgets it."""
    metas = store.in_memory_only()
    tokens: Counter[tuple[bytes, str]] = Counter()
    for meta in metas:
        tokens[meta.namespace, meta.group] += meta.held
    covered: dict[bytes, int] = {}
    for (namespace, _group), count in tokens.items():
        # Layer groups cover the same tokens, so the best stocked one counts, not their sum.
        covered[namespace] = max(covered.get(namespace, 0), count)
    nbytes = sum(meta.nbytes for meta in metas)
    return Unwritten(len(metas), nbytes, sum(covered.values()), store.stats().writer)


def last_words(store: BlockStore, left: Unwritten, clean: bool) -> LastWords:
    """Return what to say of a closed store: `left` is what was unwritten before, `clean` what
    `close` returned."""
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
    stock = f"{store.cold_dir} has {_pages(cold.pages)}, {format_size(cold.nbytes)}"
    if complete:
        said = "Everything is on the disk"
    elif gone and not cold.pages:
        said, stock = "Nothing is on the disk", f"{store.cold_dir} cannot be used"
    elif left.pages or gone or not clean:
        said = "Not everything is on the disk"
    else:
        # What was refused or dropped may have been written later, or be gone from memory too.
        said = "Perhaps not everything is on the disk"
    return LastWords(complete, f"{said}{trouble}: {'; '.join([*lost, *counts, stock])}.")


def _cold_limit(store: BlockStore) -> int:
    """Return how far the directory may fill up before this process stops writing."""
    allowed = store.allowance()
    if allowed is None:
        return store.settings.cold_bytes
    return allowed.limit_bytes if allowed.own_limit_bytes is None else allowed.own_limit_bytes


def _setbacks(store: BlockStore, left: Unwritten, clean: bool) -> list[str]:
    """Return what kept pages from the disk, and how often: a page may be counted several times, and
    have been written later."""
    writer, settings = left.writer, store.settings
    if writer is None:
        return []
    causes = {
        "still pending when the time was over": 0 if clean else writer.pending_pages,
        f"refused for want of cold_bytes ({format_size(_cold_limit(store))})": (
            writer.refused_pages
        ),
        f"beyond daily_write_bytes ({format_size(settings.daily_write_bytes)})": (
            writer.rationed_pages
        ),
        "dropped by a full queue or a disk at rest": writer.dropped_pages,
        "not written by a failing disk": writer.failed_pages,
        "not stored for want of room": store.stats().requests.skips.get(NO_ROOM, 0),
    }
    said = [
        f"{_pages(count)} {'were' if count != 1 else 'was'} {why}"
        for why, count in causes.items()
        if count
    ]
    return said


def _amount(left: Unwritten) -> str:
    return f"{_pages(left.pages)}, {format_size(left.nbytes)}, {left.tokens:,} tokens"


def _pages(count: int) -> str:
    return f"{count:,} page{'s' * (count != 1)}"
