"""A process as the status page, the metrics and the history see it."""

from collections.abc import Sequence
from dataclasses import dataclass

from omlx_cache.control.replies import Identity
from omlx_cache_storage.stats import Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus:
    """A process with its statistics, as the status page and the metrics show it. One that does not
    answer has an `error`, no `stats`, and its last description of itself."""

    pid: int
    name: str
    title: str
    role: str
    version: str
    uptime_seconds: float
    models: Sequence[str]
    cold_dir: str | None
    stats: Stats | None
    error: str | None = None

    @classmethod
    def of(
        cls, known: Identity, cold_dir: str | None, stats: Stats | None, error: str | None = None
    ) -> "ProcessStatus":
        """Return the status of a process that said who it is."""
        return cls(
            pid=known.pid,
            name=known.name,
            title=known.title,
            role=known.role,
            version=known.version,
            uptime_seconds=known.uptime_s if stats is None else stats.uptime_seconds,
            models=known.models,
            cold_dir=cold_dir,
            stats=stats,
            error=error,
        )
