"""One immutable picture of a store.

Units are in the names; everything counts from the store's start, except the present holdings.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, get_args


@dataclass(frozen=True, slots=True)
class Histogram:
    """One measure at one moment: `buckets` are (bound, how many were no larger); `count` includes
    those beyond the last bound."""

    buckets: tuple[tuple[float, int], ...]
    sum: float
    count: int


@dataclass(frozen=True, slots=True)
class HotUsage:
    """The hot tier at one moment. While memory is short, `allowed_bytes`, its limit for now, is
    less than `limit_bytes`. Some pages would have evicted others that were used less than
    `patience_seconds` ago: `passed_pages` of them went straight to the disk and `refused_pages`
    nowhere."""

    pages: int
    nbytes: int
    peak_bytes: int
    limit_bytes: int
    allowed_bytes: int
    evicted_pages: int
    passed_pages: int = 0
    refused_pages: int = 0
    patience_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ColdUsage:
    """The cold tier at one moment: physical bytes and pages, and its failures so far.

    `state` is `ok`, or says why the disk refused most recently, until the next success. `room` is
    `ok`; `short` while the disk has less free than it is to keep free, so that pages are evicted;
    `rationed` in an hour in which the day's writes were found to be spent. `refused_pages` were
    worth less than all pages there, or would have evicted others that were used less than
    `patience_seconds` ago. `rewritten_bytes` are those of `written_bytes` whose page the disk had
    had before. `day_written_bytes` were written in 24 hours, by every process. This process writes
    only below `own_limit_bytes`; it and `set_by`, who set the budget, stand there only if
    requested.
    """

    pages: int
    nbytes: int
    peak_bytes: int
    limit_bytes: int
    evicted_pages: int
    refused_pages: int
    corrupt_pages: int
    undecodable_pages: int
    ignored_files: int
    state: str
    written_bytes: int = 0
    rewritten_bytes: int = 0
    rationed_pages: int = 0
    day_written_bytes: int = 0
    day_limit_bytes: int = 0
    patience_seconds: float = 0.0
    set_by: str | None = None
    own_limit_bytes: int | None = None
    room: str = "ok"


@dataclass(frozen=True, slots=True)
class WriterUsage:
    """The writer's counts, and its pending pages. `refused_pages` were too deep for the disk's
    budget, `rationed_pages` more than `daily_write_bytes` allows. `dropped_pages` did not fit into
    the queue, or were queued while the writer backed off: memory offers them again."""

    pending_pages: int
    pending_bytes: int
    peak_bytes: int
    limit_bytes: int
    written_pages: int
    written_bytes: int
    dropped_pages: int
    failed_pages: int
    refused_pages: int
    rationed_pages: int = 0


@dataclass(frozen=True, slots=True)
class RemoteUsage:
    """The counts of a remote tier, and the state of its store. `where` names no password.

    `state` is `ok`, or `resting: ` and why: the store failed, and the tier backs off. Late lookups
    and reads were not answered in time, `lost_pages` were found and missing when they were read,
    and `bad_pages` had wrong bytes. `errors` counts the store's failures, by reason. Bytes are as
    on the wire. `present_pages` were there already when their turn to be written came.
    `dropped_pages` did not fit into the queue or left this machine before, and the store rejected
    `failed_pages`. `held_bytes` are requested, or received and not restored yet. `latency_seconds`
    and `bytes_per_second` are recent, 0 before they are known.
    """

    engine: str
    where: str
    state: str
    known_pages: int = 0
    lookups: int = 0
    asked_pages: int = 0
    found_pages: int = 0
    late_lookups: int = 0
    read_pages: int = 0
    read_bytes: int = 0
    late_reads: int = 0
    lost_pages: int = 0
    bad_pages: int = 0
    written_pages: int = 0
    written_bytes: int = 0
    present_pages: int = 0
    pending_pages: int = 0
    dropped_pages: int = 0
    failed_pages: int = 0
    rests: int = 0
    latency_seconds: float = 0.0
    bytes_per_second: float = 0.0
    errors: Mapping[str, int] = field(default_factory=dict)
    lookup_phases: int = 0
    held_bytes: int = 0
    peak_held_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RequestStats:
    """Sessions and their restored tokens. `hit_ratio` is restored over asked tokens.

    Seconds are wall time: work of several requests at once counts once. `saved_seconds` is an
    estimate: the time of the restored tokens at their model's `prefill_tokens_per_second` as it was
    then, less the time of restoring, or of waiting for another request's blocks. It is negative
    when those took longer, and 0 while no rate is known. `prepared_tokens` were computed before any
    request for them, `prepared_asked_tokens` of them restored since. `tokenizer_differences` are
    prompts whose cached tokens were not their tokenizer's.
    """

    sessions: int
    live_sessions: int
    commits: int
    asked_tokens: int
    restored_tokens: int
    restored_hot_tokens: int
    restored_cold_tokens: int
    restore_seconds: float
    commit_seconds: float
    prefilled_tokens: int
    prefill_seconds: float
    saved_seconds: float
    prefill_tokens_per_second: Mapping[str, float]
    stored_pages: int
    stored_bytes: int
    rejected_pages: int
    misses: Mapping[str, int]
    skips: Mapping[str, int]
    ignored_hints: int = 0
    restored_remote_tokens: int = 0
    prepared_tokens: int = 0
    prepared_asked_tokens: int = 0
    tokenizer_differences: int = 0

    @property
    def hit_ratio(self) -> float:
        return self.restored_tokens / self.asked_tokens if self.asked_tokens else 0.0


@dataclass(frozen=True, slots=True)
class SnapshotStats:
    """State captured by open sessions and not yet handed over."""

    live: int
    live_bytes: int
    peak_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """How short of memory the system is (`normal`, `warn`, `critical`), and the bytes that the hot
    tier freed for it. `free_bytes` is None where the platform does not say."""

    level: str
    free_bytes: int | None
    given_back_bytes: int
    times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """A store's counts since its start, and its state now. The disk tiers are null in
    hot_cache_only mode. `events` counts the log's events by kind. `service` counts the work of
    omlx-cached, and has nothing for a store. Names end with their unit."""

    uptime_seconds: float
    hot: HotUsage
    cold: ColdUsage | None
    writer: WriterUsage | None
    remote: RemoteUsage | None = None
    snapshots: SnapshotStats
    memory: MemoryUsage
    requests: RequestStats
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    events: Mapping[str, int] = field(default_factory=dict)
    service: Mapping[str, float | bool] = field(default_factory=dict)

    @property
    def written_bytes_per_restored_token(self) -> float | None:
        if self.cold is None or not self.requests.restored_tokens:
            return None
        return self.cold.written_bytes / self.requests.restored_tokens

    def to_dict(self) -> dict[str, object]:
        return {
            **asdict(self),
            "requests": {**asdict(self.requests), "hit_ratio": self.requests.hit_ratio},
            "written_bytes_per_restored_token": self.written_bytes_per_restored_token,
        }


Kind = Literal[
    "stored", "restored", "evicted", "removed", "cleared", "resynced", "failed", "unwritten"
]
"""`evicted`: for room, or since another tier has the page. `removed`: it was deleted, or found to
be gone or damaged. `restored`: a request got tokens. `cleared`: a tier has nothing any more, or
nothing of a namespace. `resynced`: the directory was read anew, and its pages have no events of
their own. `failed`: a page was not written, or could not be read. `unwritten`: the writer did not
try to write it."""
KINDS: tuple[Kind, ...] = get_args(Kind)
