"""The metrics of the remote tier: what this process asked, read and wrote, and how the store is."""

from typing import Final

from omlx_cache.status.shapes import PREFIX, Choice, Metric, Split, one
from omlx_cache_storage.remote import reasons

REASONS: Final = frozenset(
    word for name, word in vars(reasons).items() if name.isupper() and isinstance(word, str)
)
STATE: Final = Choice(
    f"{PREFIX}remote_state",
    "Whether the remote store is used: 1 for the state that it is in. A resting one failed, and is "
    "left alone for a while.",
    ("remote", "state"),
    "state",
    ("ok", "resting"),
)
ERRORS: Final = Split(
    f"{PREFIX}remote_errors_total",
    "What the remote store did not do, by why.",
    ("remote", "errors"),
    "reason",
    REASONS,
)


def _remote(name: str, text: str) -> Metric:
    """Return a counter that is called as the stats call it."""
    return one(f"remote_{name}_total", "counter", f"remote.{name}", text)


METRICS: Final[tuple[Metric, ...]] = (
    _remote("lookups", "Look-ups in the remote store."),
    _remote("lookup_phases", "Questions of those that waited for the answer to one before."),
    _remote("late_lookups", "Look-ups that were not answered in the time that a request waits."),
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
    _remote("dropped_pages", "Pages that were not written: the queue was full, or they had left."),
    _remote("failed_pages", "Pages that the store did not take."),
    _remote("rests", "How often the store failed and was left alone for a while."),
    one("remote_known_pages", "gauge", "remote.known_pages", "Pages known to be there."),
    one("remote_pending_pages", "gauge", "remote.pending_pages", "Pages that wait to be written."),
    one(
        "remote_held_bytes",
        "gauge",
        "remote.held_bytes",
        "Bytes that were asked for, or came, and were not taken yet.",
    ),
    one(
        "remote_peak_held_bytes",
        "gauge",
        "remote.peak_held_bytes",
        "The most of them since the start.",
    ),
    one(
        "remote_latency_seconds",
        "gauge",
        "remote.latency_seconds",
        "The shortest of the latest round trips; 0 before there was one.",
    ),
    one(
        "remote_bytes_per_second",
        "gauge",
        "remote.bytes_per_second",
        "What the store lately gave, all connections together; 0 before that is known.",
    ),
)
