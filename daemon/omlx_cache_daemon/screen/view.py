"""What the screen shows at one moment: one process, or the sum of all."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from omlx_cache.requests.explanation import RequestRecord
from omlx_cache_daemon.rates import figure
from omlx_cache_daemon.screen.afar import Afar, afar_of
from omlx_cache_daemon.screen.lately import Busy, busiest, series
from omlx_cache_daemon.screen.watched import StoreSeen

SERIES_STEPS = 240
SHOWN_REQUESTS = 100

SORTS: dict[str, Callable[[Busy], float]] = {
    "restored": lambda busy: busy.restored_tokens,
    "asked": lambda busy: busy.asked_tokens,
    "requests": lambda busy: busy.requests,
    "hit": lambda busy: busy.hit_ratio,
    "latest": lambda busy: busy.last_at,
}
"""By what the busiest namespaces can be sorted, most first."""


@dataclass(frozen=True, slots=True)
class Tier:
    """What one tier holds of its budget; `state` is text when the disk is not `ok`."""

    nbytes: int = 0
    limit_bytes: int = 0
    pages: int = 0
    state: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """All figures of one screen. A rate is None until there were two looks."""

    at: float
    processes: Sequence[StoreSeen]
    chosen: StoreSeen | None
    hot: Tier
    cold: Tier | None
    queue: Tier
    memory_level: str
    sums: dict[str, float]
    rates: dict[str, float | None]
    busy: Sequence[Busy]
    requests: Sequence[tuple[int | None, RequestRecord]]
    restored: Sequence[int]
    sort: str = "restored"
    notes: Sequence[str] = field(default_factory=tuple)
    afar: Afar | None = None


_SUMS = {
    "requests": ("requests", "sessions"),
    "live": ("requests", "live_sessions"),
    "asked_tokens": ("requests", "asked_tokens"),
    "restored_tokens": ("requests", "restored_tokens"),
    "computed_tokens": ("requests", "prefilled_tokens"),
    "saved_seconds": ("requests", "saved_seconds"),
    "written_bytes": ("cold", "written_bytes"),
    "dropped_pages": ("writer", "dropped_pages"),
    "failed_pages": ("writer", "failed_pages"),
    "refused_pages": ("writer", "refused_pages"),
    "corrupt_pages": ("cold", "corrupt_pages"),
    "evicted_hot_pages": ("hot", "evicted_pages"),
    "evicted_cold_pages": ("cold", "evicted_pages"),
}
_RATES = (
    "requests_per_second",
    "prompt_tokens_per_second",
    "restored_tokens_per_second",
    "computed_tokens_per_second",
    "written_bytes_per_second",
    "evicted_pages_per_second",
)


def view_of(
    processes: Sequence[StoreSeen],
    chosen: str | None,
    at: float,
    sort: str = "restored",
    gone: Sequence[StoreSeen] = (),
) -> View:
    """Return what is shown of the process with the socket `chosen`, or of all; `gone` are those
    that were there."""
    one = next((process for process in processes if process.socket == chosen), None)
    shown = list(processes) if one is None else [one]
    records = [(process.pid, record) for process in shown for record in process.records]
    records.sort(key=lambda pair: pair[1].asked_at, reverse=True)
    plain = [record for _, record in records]
    busy = sorted(busiest(plain, at), key=lambda each: (-SORTS[sort](each), each.namespace))
    levels = {process.stats.memory.level for process in shown if process.stats is not None}
    return View(
        at,
        processes,
        one,
        _summed([_tier(process, "hot", "nbytes") for process in shown]),
        _disks(shown),
        _summed([_tier(process, "writer", "pending_bytes") for process in shown]),
        ", ".join(sorted(levels - {"normal"})),
        {name: sum(figure(p.stats, *path) or 0 for p in shown) for name, path in _SUMS.items()},
        {name: _rate(shown, name) for name in _RATES},
        busy,
        records[:SHOWN_REQUESTS],
        series(plain, at, SERIES_STEPS),
        sort,
        [*_troubles(shown), *(f"process {p.pid}, {p.title}, has gone" for p in gone)],
        afar_of(shown),
    )


def _troubles(shown: Sequence[StoreSeen]) -> Iterator[str]:
    """Yield what is wrong with each process: no answer, or a disk or store that is not used."""
    for process in shown:
        tiers = (getattr(process.stats, name, None) for name in ("cold", "remote"))
        state, remote = ("ok" if tier is None else tier.state for tier in tiers)
        if process.error is not None:
            yield f"process {process.pid}: {process.error}"
        elif state != "ok":
            yield f"process {process.pid}: disk {state}"
        if process.error is None and remote != "ok":
            yield f"process {process.pid}: the remote store is {remote}"


def _disks(shown: Sequence[StoreSeen]) -> Tier | None:
    """Return the sum over directories: one that several processes use counts once."""
    found: dict[str, Tier] = {}
    for process in shown:
        if process.stats is not None and process.stats.cold is not None:
            known = process.directory
            name = process.socket if known is None else os.path.realpath(known)
            found.setdefault(name, _tier(process, "cold", "nbytes"))
    return _summed(list(found.values())) if found else None


def _tier(process: StoreSeen, name: str, nbytes: str) -> Tier:
    pages = "pending_pages" if name == "writer" else "pages"
    held, limit, count = (
        int(figure(process.stats, name, one) or 0) for one in (nbytes, "limit_bytes", pages)
    )
    state = getattr(getattr(process.stats, name, None), "state", "ok")
    return Tier(held, limit, count, "" if state == "ok" else state)


def _summed(tiers: Sequence[Tier]) -> Tier:
    return Tier(
        sum(tier.nbytes for tier in tiers),
        sum(tier.limit_bytes for tier in tiers),
        sum(tier.pages for tier in tiers),
        "; ".join(dict.fromkeys(tier.state for tier in tiers if tier.state)),
    )


def _rate(shown: Sequence[StoreSeen], name: str) -> float | None:
    """Return the sum of a rate over the processes that tell it."""
    found = []
    for process in shown:
        value = process.rates.get(name)
        if name == "restored_tokens_per_second":
            asked, ratio = (process.rates.get(n) for n in ("prompt_tokens_per_second", "hit_ratio"))
            value = asked if not asked or ratio is None else asked * ratio
        if value is not None:
            found.append(value)
    return sum(found) if found else None
