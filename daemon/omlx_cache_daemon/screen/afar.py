"""What the screen shows of the store that machines share."""

from collections.abc import Sequence
from dataclasses import dataclass

from omlx_cache_daemon.replies import Map
from omlx_cache_daemon.screen.watched import StoreSeen


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


def afar_of(shown: Sequence[StoreSeen]) -> Afar | None:
    """Return what there is of remote stores, None where no process has one."""
    having = [(p, p.stats.remote) for p in shown if p.stats is not None and p.stats.remote]
    if not having:
        return None
    found = [remote for _, remote in having]
    bad = [state for state in dict.fromkeys(remote.state for remote in found) if state != "ok"]
    trips = [remote.latency_seconds for remote in found if remote.latency_seconds]
    processes = [process for process, _ in having]
    return Afar(
        where=", ".join(dict.fromkeys(remote.where for remote in found)),
        state="; ".join(bad) or "ok",
        read_bytes=sum(remote.read_bytes for remote in found),
        written_bytes=sum(remote.written_bytes for remote in found),
        pending_pages=sum(remote.pending_pages for remote in found),
        dropped_pages=sum(remote.dropped_pages for remote in found),
        bad_pages=sum(remote.bad_pages for remote in found),
        latency_seconds=min(trips, default=None),
        read_bytes_per_second=_rate(processes, "remote_read_bytes_per_second"),
        written_bytes_per_second=_rate(processes, "remote_written_bytes_per_second"),
    )


def _rate(shown: Sequence[StoreSeen], name: str) -> float | None:
    rates = [rate for p in shown if (rate := p.rates.get(name)) is not None]
    return float(sum(rates)) if rates else None
