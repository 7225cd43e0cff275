"""What a store did between two looks at its statistics, as one row of rates."""

import time
from collections.abc import Mapping

from omlx_cache.settings.sizes import format_size
from omlx_cache_daemon.replies import Map

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


def rates(before: Map | None, now: Map) -> Map:
    """Return what happened between two documents of `stats`, by the second; None for what they do
    not tell. Without a first one, or after a restart: since the store's start."""
    uptime = _number(now, "uptime_seconds")
    earlier = None if before is None else _number(before, "uptime_seconds")
    if uptime is None or earlier is None or earlier > uptime:
        before, earlier = {}, 0.0
    seconds = None if uptime is None else uptime - earlier

    def grown(*path: str) -> float | None:
        count = _number(now, *path)
        return None if count is None else count - (_number(before or {}, *path) or 0)

    def per_second(*counts: float | None) -> float | None:
        known = [count for count in counts if count is not None]
        return sum(known) / seconds if known and seconds else None

    asked = grown("requests", "asked_tokens")
    restored = grown("requests", "restored_tokens")
    written = grown("cold", "written_bytes")
    evicted = (grown("hot", "evicted_pages"), grown("cold", "evicted_pages"))
    return {
        "requests_per_second": per_second(grown("requests", "sessions")),
        "prompt_tokens_per_second": per_second(asked),
        "hit_ratio": restored / asked if asked and restored is not None else None,
        "computed_tokens_per_second": per_second(grown("requests", "prefilled_tokens")),
        "hot_bytes": _number(now, "hot", "nbytes"),
        "cold_bytes": _number(now, "cold", "nbytes"),
        "pending_bytes": _number(now, "writer", "pending_bytes"),
        "remote_read_bytes_per_second": per_second(grown("remote", "read_bytes")),
        "remote_written_bytes_per_second": per_second(grown("remote", "written_bytes")),
        "remote_state": _state(now),
        "written_bytes_per_second": per_second(written),
        "written_bytes_per_restored_token": written / restored
        if restored and written is not None
        else None,
        "evicted_pages_per_second": per_second(*evicted),
        "saved_seconds": grown("requests", "saved_seconds"),
        "misses": _new_misses(before or {}, now),
    }


def cells(row: Map) -> list[object]:
    """Return a row of rates for people, a cell for each of `COLUMNS`."""
    ratio, saved, misses = row["hit_ratio"], row["saved_seconds"], row["misses"]
    assert isinstance(misses, dict)
    return [
        time.strftime("%H:%M:%S"),
        _rate(row["requests_per_second"]),
        _rate(row["prompt_tokens_per_second"]),
        f"{100 * ratio:.1f}" if isinstance(ratio, float) else None,
        _rate(row["computed_tokens_per_second"]),
        _size(row["hot_bytes"]),
        _size(row["cold_bytes"]),
        _from_afar(row),
        _size(row["pending_bytes"]),
        _size(row["written_bytes_per_second"]),
        _size(row["written_bytes_per_restored_token"]),
        _rate(row["evicted_pages_per_second"]),
        # Without the sign of a loss that rounds to nothing.
        f"{round(saved, 1) + 0.0:.1f} s" if isinstance(saved, int | float) else None,
        ", ".join(f"{count} {reason}" for reason, count in misses.items()) or None,
    ]


def _state(now: Map) -> str | None:
    state = _map(now, "remote").get("state")
    return state if isinstance(state, str) else None


def _from_afar(row: Map) -> str | None:
    """Return what other machines gave, or that their store is left alone."""
    state = row["remote_state"]
    if isinstance(state, str) and state != "ok":
        return state.partition(":")[0]
    return _size(row["remote_read_bytes_per_second"])


def _new_misses(before: Map, now: Map) -> dict[str, int]:
    earlier, later = (_map(_map(stats, "requests"), "misses") for stats in (before, now))
    counts = {}
    for reason, count in later.items():
        known = earlier.get(reason, 0)
        if isinstance(count, int) and isinstance(known, int) and count > known:
            counts[reason] = count - known
    return counts


def _map(value: Mapping[str, object], name: str) -> Map:
    inner = value.get(name)
    return inner if isinstance(inner, dict) else {}


def _number(stats: Map, *path: str) -> float | None:
    """Return a number of the document; None for what another version does not have."""
    for name in path[:-1]:
        stats = _map(stats, name)
    value = stats.get(path[-1])
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _rate(value: object) -> str | None:
    if not isinstance(value, int | float):
        return None
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.1f}"


def _size(value: object) -> str | None:
    return format_size(round(value)) if isinstance(value, int | float) else None
