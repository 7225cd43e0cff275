"""Figures of stores: sums of several, and one store's between two looks."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import reduce
from typing import Any, NamedTuple

from omlx_cache.settings.sizes import duration
from omlx_cache_daemon.client import Client, as_answer
from omlx_cache_daemon.render import quantity
from omlx_cache_storage.stats import Histogram, RequestStats, Stats

Rates = dict[str, Any]
"""By the names of JSON; None where nothing is known."""

_HIGHEST = {
    "uptime_seconds",
    "patience_seconds",
    "prefill_tokens_per_second",
    "latency_seconds",
    "free_bytes",
}
"""Of several stores the highest counts, not the sum."""
_OF_THE_DIRECTORY = ("pages", "nbytes", "peak_bytes", "limit_bytes", "day_written_bytes")

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
    ("MISSES", -16),
)
SPARE = ("B/TOKEN", "PENDING", "REMOTE/S", "EVICTED/S", "WRITTEN/S", "COLD", "HOT", "COMPUTED/S")


class Known(NamedTuple):
    """A store's title, its directory, None for none, and its figures."""

    title: str
    directory: str | None
    stats: Stats


def ask_figures(client: Client) -> Known:
    """Raises CommandError, ControlError."""
    told = client.process()
    directory = told.cold_dir and os.path.realpath(told.cold_dir)
    return Known(told.title, directory, as_answer(Stats, client.call("stats")))


def total(known: Sequence[tuple[str | None, Stats]]) -> Stats:
    """Return the sum of the statistics of stores, each with its directory: one that several stores
    use counts once."""
    stats: list[Stats] = []
    for at, (directory, one) in enumerate(known):
        if one.cold is not None and directory in (before for before, _ in known[:at]):
            nothing: Any = dict.fromkeys(_OF_THE_DIRECTORY, 0)
            one = replace(one, cold=replace(one.cold, **nothing))
        stats.append(one)
    return reduce(added_up, stats)


def added_up(one: Any, other: Any, name: str = "") -> Any:
    """Return the sum of two values of the field `name`, part by part; texts that differ beside each
    other."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, Histogram):
        pairs = zip(one.buckets, other.buckets, strict=False)
        buckets = tuple((bound, count + more) for (bound, count), (_, more) in pairs)
        return Histogram(buckets, one.sum + other.sum, one.count + other.count)
    if is_dataclass(one) and not isinstance(one, type):
        names = [field.name for field in fields(one)]
        return replace(one, **{n: added_up(getattr(one, n), getattr(other, n), n) for n in names})
    if isinstance(one, Mapping):
        return {key: added_up(one.get(key), other.get(key), name) for key in {**one, **other}}
    if isinstance(one, str):
        troubles = [text for text in (one, other) if text not in ("ok", "normal")]
        return "; ".join(dict.fromkeys(troubles)) or one
    return max(one, other) if name in _HIGHEST else one + other


def rates(before: Stats | None, now: Stats) -> Rates:
    """Return what happened between two looks, by the second; None for a tier that is not there.
    Without a first one, or after a restart: since the store's start."""
    if before is not None and before.uptime_seconds > now.uptime_seconds:
        before = None
    seconds = now.uptime_seconds - (0.0 if before is None else before.uptime_seconds)

    def grown(tier: str, name: str) -> float | None:
        parts = (getattr(stats, tier, None) for stats in (now, before))
        count, earlier = (getattr(part, name, None) for part in parts)
        return None if count is None else count - (earlier or 0)

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
        "restored_tokens_per_second": per_second(restored),
        "computed_tokens_per_second": per_second(grown("requests", "prefilled_tokens")),
        "hot_bytes": now.hot.nbytes,
        "cold_bytes": now.cold and now.cold.nbytes,
        "pending_bytes": now.writer and now.writer.pending_bytes,
        "remote_read_bytes_per_second": per_second(grown("remote", "read_bytes")),
        "remote_written_bytes_per_second": per_second(grown("remote", "written_bytes")),
        "remote_state": None if now.remote is None else now.remote.state,
        "written_bytes_per_second": per_second(written),
        "written_bytes_per_restored_token": per_token,
        "evicted_pages_per_second": per_second(*evicted),
        "saved_seconds": grown("requests", "saved_seconds"),
        "misses": {why: count for why, count in misses.items() if count > 0},
    }


def cells(row: Rates, at: str) -> list[object]:
    ratio, saved, misses = row["hit_ratio"], row["saved_seconds"], row["misses"]
    state = row["remote_state"] and row["remote_state"].partition(":")[0]
    return [
        at,
        rate(row["requests_per_second"]),
        rate(row["prompt_tokens_per_second"]),
        None if ratio is None else f"{100 * ratio:.1f}",
        rate(row["computed_tokens_per_second"]),
        quantity("bytes", row["hot_bytes"]),
        quantity("bytes", row["cold_bytes"]),
        # The bytes of other machines, or the state of a remote store that fails.
        quantity("bytes", row["remote_read_bytes_per_second"]) if state in (None, "ok") else state,
        quantity("bytes", row["pending_bytes"]),
        quantity("bytes", row["written_bytes_per_second"]),
        quantity("bytes", row["written_bytes_per_restored_token"]),
        rate(row["evicted_pages_per_second"]),
        # Without the sign of a loss that rounds to nothing.
        f"{round(saved, 1) + 0.0:.1f} s",
        ", ".join(f"{count} {reason}" for reason, count in misses.items()) or None,
    ]


def time_saved(requests: RequestStats) -> str:
    if requests.restored_tokens and not requests.prefill_tokens_per_second:
        return "what it saved is known after the first prompt that is computed"
    return f"about {duration(max(0.0, requests.saved_seconds))} saved"


def rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.1f}"
