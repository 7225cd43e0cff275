"""The catalogue of metrics: the name of each, its meaning, and its place in `Stats`.

Names and units are Prometheus' conventions: base units, `_total` for a number that only grows. The
exposition, the documents and the dashboard follow these rows.
"""

from collections.abc import Collection, Mapping
from typing import Final, Literal, NamedTuple

from omlx_cache import reasons
from omlx_cache_storage import errors
from omlx_cache_storage.stats import KINDS

PREFIX: Final = "omlx_cache_"
Kind = Literal["counter", "gauge"]
REMOTE_REASONS: Final = frozenset(
    {*errors.REMOTE_WORDS.values(), errors.REMOTE_LOST, errors.REMOTE_FOREIGN}
)
REASONS: Final = REMOTE_REASONS | {
    word for name, word in vars(reasons).items() if name.isupper() and isinstance(word, str)
}


class Metric(NamedTuple):
    """Numbers of each process, and the paths to them in `Stats`, by the value of a `label`; without
    a label there is one path, and one number.

    At a path lies a number, a text out of `words`, or a map from `words` to numbers. A text is 1
    for the present word and 0 for the others. Unknown words are `other`; a map of a metric without
    words is by model.
    """

    name: str
    kind: Kind
    help: str
    paths: Mapping[str, str]
    label: str = ""
    words: Collection[str] | None = None


def _one(name: str, kind: Kind, path: str, text: str) -> Metric:
    return Metric(f"{PREFIX}{name}", kind, text, {"": path})


def _tiers(name: str, kind: Kind, key: str, text: str) -> Metric:
    paths = {tier: f"{tier}.{key}" for tier in ("hot", "cold")}
    return Metric(f"{PREFIX}{name}", kind, text, paths, "tier")


def _remote(name: str, text: str) -> Metric:
    return _one(f"remote_{name}_total", "counter", f"remote.{name}", text)


METRICS: Final = (
    _one("uptime_seconds", "gauge", "uptime_seconds", "Time since the store was opened."),
    # Requests and tokens.
    _one("sessions_total", "counter", "requests.sessions", "Requests that asked the cache."),
    _one("live_sessions", "gauge", "requests.live_sessions", "Requests that hold pages now."),
    _one("commits_total", "counter", "requests.commits", "Requests whose blocks were handed over."),
    _one(
        "query_tokens_total",
        "counter",
        "requests.asked_tokens",
        "Tokens of the prompts that were looked up.",
    ),
    Metric(
        f"{PREFIX}hit_tokens_total",
        "counter",
        "Tokens that were restored instead of computed, by the tier that had them.",
        {tier: f"requests.restored_{tier}_tokens" for tier in ("hot", "cold", "remote")},
        "tier",
    ),
    _one(
        "prefill_tokens_total",
        "counter",
        "requests.prefilled_tokens",
        "Tokens of prompts that were computed.",
    ),
    _one(
        "prepared_tokens_total",
        "counter",
        "requests.prepared_tokens",
        "Tokens that were computed before anybody asked for them.",
    ),
    _one(
        "prepared_asked_tokens_total",
        "counter",
        "requests.prepared_asked_tokens",
        "Those of them that a request has restored since.",
    ),
    _one(
        "tokenizer_differences_total",
        "counter",
        "requests.tokenizer_differences",
        "Prompts whose cached tokens were not their tokenizer's: each turns that cache off.",
    ),
    _one(
        "prefill_busy_seconds_total",
        "counter",
        "requests.prefill_seconds",
        "Wall time in which prompts were computed; what several did at once counts once.",
    ),
    _one(
        "restore_busy_seconds_total",
        "counter",
        "requests.restore_seconds",
        "Wall time in which prefixes were restored; what several did at once counts once.",
    ),
    _one(
        "commit_busy_seconds_total",
        "counter",
        "requests.commit_seconds",
        "Time that commits took of the thread that runs the model.",
    ),
    _one(
        "saved_seconds",
        "gauge",
        "requests.saved_seconds",
        "Estimate of the prefill time that was saved since the start, less what restoring took. A "
        "restore that was slower than computing makes it smaller: use delta(), not rate().",
    ),
    _one("stored_pages_total", "counter", "requests.stored_pages", "Pages that the tiers took."),
    _one("stored_bytes_total", "counter", "requests.stored_bytes", "Bytes that the tiers took."),
    _one(
        "ignored_hints_total",
        "counter",
        "requests.ignored_hints",
        "Invalid hints, and arguments of requests of a wrong type, that were ignored.",
    ),
    # Tiers.
    _tiers(
        "pages",
        "gauge",
        "pages",
        "Pages held. The cold tier's are the directory's: the same for each process that shares "
        "it, so take max(), not sum().",
    ),
    _tiers(
        "bytes", "gauge", "nbytes", "Bytes held, on the disk physical ones; as omlx_cache_pages."
    ),
    _tiers("peak_bytes", "gauge", "peak_bytes", "The most that was held since the start."),
    _tiers(
        "limit_bytes",
        "gauge",
        "limit_bytes",
        "Budget of the tier. The cold tier's is that of the directory, for all its processes.",
    ),
    _tiers(
        "evicted_pages_total",
        "counter",
        "evicted_pages",
        "Pages that left to make room for others.",
    ),
    _tiers(
        "refused_pages_total",
        "counter",
        "refused_pages",
        "Pages that a tier did not take, to keep what was used a short while ago.",
    ),
    _tiers(
        "patience_seconds",
        "gauge",
        "patience_seconds",
        "How long a page must have been unused before a new one may push it out; learned.",
    ),
    _one(
        "hot_allowed_bytes",
        "gauge",
        "hot.allowed_bytes",
        "What the hot tier may hold now: less than its limit while the system is short of memory.",
    ),
    _one(
        "hot_passed_pages_total",
        "counter",
        "hot.passed_pages",
        "Pages that went straight to the disk, past the hot tier.",
    ),
    # The disk.
    _one(
        "cold_corrupt_pages_total",
        "counter",
        "cold.corrupt_pages",
        "Page files whose checksum or shape was wrong; each was a miss, and was removed.",
    ),
    _one(
        "cold_undecodable_pages",
        "gauge",
        "cold.undecodable_pages",
        "Pages on the disk that this process cannot decode.",
    ),
    _one(
        "cold_ignored_files",
        "gauge",
        "cold.ignored_files",
        "Files in the directory that belong to other users or may be changed by them.",
    ),
    _one(
        "cold_own_limit_bytes",
        "gauge",
        "cold.own_limit_bytes",
        "Where this process was told less than the directory's budget: it writes below this only.",
    ),
    _one(
        "cold_written_bytes_total",
        "counter",
        "cold.written_bytes",
        "Bytes of the page files that this process wrote.",
    ),
    _one(
        "cold_rewritten_bytes_total",
        "counter",
        "cold.rewritten_bytes",
        "Those among them whose page the disk had had before.",
    ),
    _one(
        "cold_rationed_pages_total",
        "counter",
        "cold.rationed_pages",
        "Pages that the disk refused because of daily_write_bytes.",
    ),
    _one(
        "cold_day_written_bytes",
        "gauge",
        "cold.day_written_bytes",
        "Bytes that all processes wrote to the directory in the last 24 hours.",
    ),
    _one(
        "cold_day_limit_bytes",
        "gauge",
        "cold.day_limit_bytes",
        "What they may write in 24 hours (daily_write_bytes); 0 without a limit.",
    ),
    # The writer.
    _one("writer_pending_pages", "gauge", "writer.pending_pages", "Pages not yet on the disk."),
    _one("writer_pending_bytes", "gauge", "writer.pending_bytes", "Bytes not yet on the disk."),
    _one(
        "writer_peak_bytes", "gauge", "writer.peak_bytes", "The most that waited since the start."
    ),
    _one("writer_limit_bytes", "gauge", "writer.limit_bytes", "Bytes that may wait."),
    _one("writer_written_pages_total", "counter", "writer.written_pages", "Pages written."),
    _one("writer_written_bytes_total", "counter", "writer.written_bytes", "Bytes written."),
    _one(
        "writer_dropped_pages_total",
        "counter",
        "writer.dropped_pages",
        "Pages that memory evicted, or the end came, before the disk had them.",
    ),
    _one(
        "writer_failed_pages_total", "counter", "writer.failed_pages", "Pages whose write failed."
    ),
    _one(
        "writer_refused_pages_total",
        "counter",
        "writer.refused_pages",
        "Pages that were too deep for the disk's budget.",
    ),
    _one(
        "writer_rationed_pages_total",
        "counter",
        "writer.rationed_pages",
        "Pages beyond daily_write_bytes.",
    ),
    # The store that machines share.
    _remote("lookups", "Lookups in the remote store."),
    _remote("lookup_phases", "Questions of those that waited for the answer to one before."),
    _remote("late_lookups", "Lookups that were not answered in the time that a request waits."),
    _remote("asked_pages", "Pages that the remote store was asked for."),
    _remote("found_pages", "Those of them that it had."),
    _remote("read_pages", "Pages that came from there, whole and right."),
    _remote("read_bytes", "Bytes that came from there, as on the wire."),
    _remote("late_reads", "Pages that did not come in time; each was a miss."),
    _remote("lost_pages", "Pages that were there when asked for and gone when read."),
    _remote(
        "bad_pages",
        "Pages that were not what they should be, or that the shared secret does not vouch for; "
        "each was a miss.",
    ),
    _remote("written_pages", "Pages that this process wrote there."),
    _remote("written_bytes", "Bytes of those, as on the wire."),
    _remote("present_pages", "Pages that were there already when they came to be written."),
    _remote(
        "dropped_pages", "Pages that were not written: the queue was full, or they were evicted."
    ),
    _remote("failed_pages", "Pages that the store rejected."),
    _remote("rests", "How often the store failed, and the tier backed off."),
    _one("remote_known_pages", "gauge", "remote.known_pages", "Pages known to be there."),
    _one("remote_pending_pages", "gauge", "remote.pending_pages", "Pages that wait to be written."),
    _one(
        "remote_held_bytes",
        "gauge",
        "remote.held_bytes",
        "Bytes in flight: requested, or received and not restored yet.",
    ),
    _one(
        "remote_peak_held_bytes",
        "gauge",
        "remote.peak_held_bytes",
        "The most of them since the start.",
    ),
    _one(
        "remote_latency_seconds",
        "gauge",
        "remote.latency_seconds",
        "The shortest of the latest round trips; 0 before there was one.",
    ),
    _one(
        "remote_bytes_per_second",
        "gauge",
        "remote.bytes_per_second",
        "What the store lately gave, all connections together; 0 before that is known.",
    ),
    # Snapshots and memory.
    _one("snapshots", "gauge", "snapshots.live", "Snapshots that open sessions hold."),
    _one("snapshot_bytes", "gauge", "snapshots.live_bytes", "Bytes of those snapshots."),
    _one(
        "snapshot_peak_bytes",
        "gauge",
        "snapshots.peak_bytes",
        "The most that they took since the start.",
    ),
    _one("snapshot_limit_bytes", "gauge", "snapshots.limit_bytes", "Budget of snapshots."),
    _one("memory_free_bytes", "gauge", "memory.free_bytes", "Memory that the system has free."),
    _one(
        "memory_given_back_bytes_total",
        "counter",
        "memory.given_back_bytes",
        "What the hot tier gave back because the system was short of memory.",
    ),
    _one(
        "memory_relief_total",
        "counter",
        "memory.times",
        "How often it gave something back for that.",
    ),
    # The service, omlx-cached.
    _one(
        "service_scrubbed_pages_total",
        "counter",
        "service.scrubbed_pages",
        "Page files whose checksums the service read.",
    ),
    _one(
        "service_scrubbed_bytes_total",
        "counter",
        "service.scrubbed_bytes",
        "Bytes of those page files.",
    ),
    _one(
        "service_damaged_pages_total",
        "counter",
        "service.damaged_pages",
        "Damaged page files that the service found and removed.",
    ),
    _one(
        "service_unread_pages_total",
        "counter",
        "service.unread_pages",
        "Page files that the disk did not give to the service; they stay.",
    ),
    _one(
        "service_passes_total",
        "counter",
        "service.passes",
        "Passes over the checksums of all pages that came to their end.",
    ),
    _one(
        "service_last_pass_timestamp_seconds",
        "gauge",
        "service.last_pass_finished",
        "When the last of them did, in seconds since 1970; 0 for never.",
    ),
    _one("service_sweeps_total", "counter", "service.sweeps", "Searches for leftovers."),
    _one(
        "service_swept_files_total",
        "counter",
        "service.swept_files",
        "Temporary files of dead writers that the service removed.",
    ),
    _one(
        "service_swept_sockets_total",
        "counter",
        "service.swept_sockets",
        "Control sockets of dead processes that the service removed.",
    ),
    _one(
        "service_freed_pages_total",
        "counter",
        "service.freed_pages",
        "Pages that the service evicted because the disk was short of free space.",
    ),
    _one(
        "service_reloads_total",
        "counter",
        "service.reloads",
        "How often the service went by a configuration that was read anew.",
    ),
    _one(
        "service_failures_total",
        "counter",
        "service.failures",
        "Faults of the service's own; its log says which.",
    ),
    # Texts and maps.
    Metric(
        f"{PREFIX}remote_state",
        "gauge",
        "Whether the remote store is used: 1 for the state that it is in. A resting one failed, "
        "and the tier backs off.",
        {"": "remote.state"},
        "state",
        ("ok", "resting"),
    ),
    Metric(
        f"{PREFIX}cold_state",
        "gauge",
        "Whether the disk takes and gives pages: 1 for the state that it is in.",
        {"": "cold.state"},
        "state",
        ("ok", "full", "failing", "opening", "unavailable"),
    ),
    Metric(
        f"{PREFIX}cold_room",
        "gauge",
        "Whether the disk has room: 1 for ok, for short (less free than min_free_bytes, so pages "
        "are evicted), for inodes (hardly a file left) or for rationed (daily_write_bytes is "
        "spent).",
        {"": "cold.room"},
        "state",
        ("ok", "short", "inodes", "rationed"),
    ),
    Metric(
        f"{PREFIX}memory_pressure",
        "gauge",
        "How short of memory the system is: 1 for the level that it is at.",
        {"": "memory.level"},
        "level",
        ("normal", "warn", "critical"),
    ),
    Metric(
        f"{PREFIX}remote_errors_total",
        "counter",
        "What the remote store did not do, by why.",
        {"": "remote.errors"},
        "reason",
        REMOTE_REASONS,
    ),
    Metric(
        f"{PREFIX}misses_total",
        "counter",
        "Requests of which not everything was restored, by why it was not more.",
        {"": "requests.misses"},
        "reason",
        REASONS,
    ),
    Metric(
        f"{PREFIX}skipped_pages_total",
        "counter",
        "Pages that a commit did not store, by why.",
        {"": "requests.skips"},
        "reason",
        REASONS,
    ),
    Metric(
        f"{PREFIX}events_total",
        "counter",
        "Events of the stream, by kind, those that nobody asked for included.",
        {"": "events"},
        "kind",
        KINDS,
    ),
    Metric(
        f"{PREFIX}prefill_tokens_per_second",
        "gauge",
        "How quickly a model computes prompts, as far as that is known.",
        {"": "requests.prefill_tokens_per_second"},
        "model",
    ),
)

UP: Final = f"{PREFIX}up"
UP_HELP: Final = "1 for a process that answers, 0 for one that does not."
INFO: Final = f"{PREFIX}store"
INFO_HELP: Final = "What a process is: its version, its role and the directory of its cold tier."
HISTOGRAMS: Final = {
    "restore_seconds": "How long a request's restore took.",
    "commit_seconds": "How long a request's commits took of the thread that runs the model.",
    "held_seconds": "How long a request waited for another one that computed its prefix.",
    "prefill_seconds": "How long a request computed what was not restored of its prompt.",
    "page_write_seconds": "How long a page's file took to be written.",
    "page_read_seconds": "How long a page's file took to be read.",
    "remote_lookup_seconds": "How long a lookup in the remote store took that was answered, all "
    "its phases.",
    "remote_page_read_seconds": "How long a page of the remote store took from when it was wanted "
    "until it was checked and in its place; less where it was in flight already.",
    "asked_tokens": "Tokens of a request's prompt.",
    "restored_tokens": "Tokens that were restored of it.",
}
