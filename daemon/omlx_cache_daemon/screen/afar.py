"""What the screen shows of the store that machines share."""

from collections.abc import Sequence
from dataclasses import dataclass

from omlx_cache_daemon.replies import Map
from omlx_cache_daemon.screen.watched import Process


@dataclass(frozen=True, slots=True)
class Afar:
    """The stores of all processes, `state` of the worst; sums since each one's start. A rate is
    None until there were two looks, the round trip until it is known."""

    where: str
    state: str
    read_bytes: int
    written_bytes: int
    pending_pages: int
    dropped_pages: int
    bad_pages: int
    latency_seconds: float | None
    read_bytes_per_second: float | None
    written_bytes_per_second: float | None

    def to_dict(self) -> Map:
        """Return plain values, for JSON."""
        return {name: getattr(self, name) for name in Afar.__dataclass_fields__}


def afar_of(shown: Sequence[Process]) -> Afar | None:
    """Return what there is of remote stores, None where no process has one."""
    having = [(p, r) for p in shown if isinstance(r := p.stats.get("remote"), dict) and r]
    if not having:
        return None
    found = [remote for _, remote in having]
    states = dict.fromkeys(str(remote.get("state", "ok")) for remote in found)
    bad = [state for state in states if state != "ok"]
    trips = [n for remote in found if (n := _number(remote, "latency_seconds"))]

    def summed(name: str) -> int:
        return int(sum(_number(remote, name) for remote in found))

    processes = [process for process, _ in having]
    return Afar(
        where=", ".join(dict.fromkeys(str(remote.get("where", "")) for remote in found)),
        state="; ".join(bad) or "ok",
        read_bytes=summed("read_bytes"),
        written_bytes=summed("written_bytes"),
        pending_pages=summed("pending_pages"),
        dropped_pages=summed("dropped_pages"),
        bad_pages=summed("bad_pages"),
        latency_seconds=min(trips, default=None),
        read_bytes_per_second=_rate(processes, "remote_read_bytes_per_second"),
        written_bytes_per_second=_rate(processes, "remote_written_bytes_per_second"),
    )


def _rate(shown: Sequence[Process], name: str) -> float | None:
    rates = [rate for p in shown if isinstance(rate := p.rates.get(name), int | float)]
    return float(sum(rates)) if rates else None


def _number(remote: Map, name: str) -> float:
    value = remote.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0
