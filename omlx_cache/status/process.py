"""A process as the status page, the metrics and the history see it."""

from dataclasses import dataclass

from omlx_cache.control.replies import Identity
from omlx_cache_storage.stats import Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus(Identity):
    """A process with its statistics, as the status page and the metrics show it. One that does not
    answer has an `error`, no `stats`, and its last description of itself."""

    cold_dir: str | None = None
    stats: Stats | None
    error: str | None = None
