"""What a store did between two looks at its statistics, as one row of rates."""

import time
from typing import Any

from omlx_cache.settings.sizes import format_size
from omlx_cache_storage.stats import Stats

Row = dict[str, Any]

COLUMNS = (
    ("TIME", 8),
    ("REQ/S", 6),
    ("PROMPT/S", 9),
    ("HIT%", 5),
    ("COMPUTED/S", 10),
    ("HOT", 10),
    ("COLD", 10),
    ("REMOTE/S", 10),
    ("PENDING", 10),
    ("WRITTEN/S", 10),
    ("B/TOKEN", 10),
    ("EVICTED/S", 9),
    ("SAVED", 8),
    ("MISSES", -1),
)


def figure(stats: Stats | None, tier: str, name: str) -> float | None:
    """Return a number of a part of statistics; None where there is no such part."""
    found: float | None = getattr(getattr(stats, tier, None), name, None)
    return found


def rates(before: Stats | None, now: Stats) -> Row:
    """Return what happened between two looks, by the second; None for a tier that is not there.
    Without a first one, or after a restart: since the store's start."""
    if before is not None and before.uptime_seconds > now.uptime_seconds:
        before = None
    seconds = now.uptime_seconds - (0.0 if before is None else before.uptime_seconds)

    def grown(tier: str, name: str) -> float | None:
        count = figure(now, tier, name)
        return None if count is None else count - (figure(before, tier, name) or 0)

    def per_second(*counts: float | None) -> float | None:
        known = [count for count in counts if count is not None]
        return sum(known) / seconds if known and seconds else None

    asked, restored = grown("requests", "asked_tokens"), grown("requests", "restored_tokens")
    written = grown("cold", "written_bytes")
    evicted = (grown("hot", "evicted_pages"), grown("cold", "evicted_pages"))
    earlier = {} if before is None else before.requests.misses
    misses = {why: n - earlier.get(why, 0) for why, n in now.requests.misses.items()}
    per_token = written / restored if restored and written is not None else None
    return {
        "requests_per_second": per_second(grown("requests", "sessions")),
        "prompt_tokens_per_second": per_second(asked),
        "hit_ratio": restored / asked if asked and restored is not None else None,
        "computed_tokens_per_second": per_second(grown("requests", "prefilled_tokens")),
        "hot_bytes": now.hot.nbytes,
        "cold_bytes": figure(now, "cold", "nbytes"),
        "pending_bytes": figure(now, "writer", "pending_bytes"),
        "remote_read_bytes_per_second": per_second(grown("remote", "read_bytes")),
        "remote_written_bytes_per_second": per_second(grown("remote", "written_bytes")),
        "remote_state": None if now.remote is None else now.remote.state,
        "written_bytes_per_second": per_second(written),
        "written_bytes_per_restored_token": per_token,
        "evicted_pages_per_second": per_second(*evicted),
        "saved_seconds": grown("requests", "saved_seconds"),
        "misses": {why: count for why, count in misses.items() if count > 0},
    }


def cells(row: Row) -> list[object]:
    """Return a row of rates for people, a cell for each of `COLUMNS`."""
    ratio, saved, misses = row["hit_ratio"], row["saved_seconds"], row["misses"]
    return [
        time.strftime("%H:%M:%S"),
        _rate(row["requests_per_second"]),
        _rate(row["prompt_tokens_per_second"]),
        None if ratio is None else f"{100 * ratio:.1f}",
        _rate(row["computed_tokens_per_second"]),
        _size(row["hot_bytes"]),
        _size(row["cold_bytes"]),
        _from_afar(row),
        _size(row["pending_bytes"]),
        _size(row["written_bytes_per_second"]),
        _size(row["written_bytes_per_restored_token"]),
        _rate(row["evicted_pages_per_second"]),
        # Without the sign of a loss that rounds to nothing.
        f"{round(saved, 1) + 0.0:.1f} s",
        ", ".join(f"{count} {reason}" for reason, count in misses.items()) or None,
    ]


def _from_afar(row: Row) -> str | None:
    """Return what other machines gave, or that their store is left alone."""
    state = row["remote_state"]
    if state not in (None, "ok"):
        return str(state).partition(":")[0]
    return _size(row["remote_read_bytes_per_second"])


def _rate(value: float | None) -> str | None:
    if value is None:
        return None
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.1f}"


def _size(value: float | None) -> str | None:
    return None if value is None else format_size(round(value))
