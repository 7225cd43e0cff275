"""What each miss reason is for people: a sentence, and what helps."""

from dataclasses import dataclass

from omlx_cache import reasons
from omlx_cache_storage.remote import reasons as remote


@dataclass(frozen=True, slots=True)
class MissReason:
    """`word` is one of `omlx_cache.reasons`; `remedy` is empty where nothing has to be done."""

    word: str
    sentence: str
    remedy: str = ""


_DOCTOR = "`omlx-cache doctor --remote` measures the way there"
_STRIDE = "a smaller snapshot_stride keeps more restore points"

_TABLE = (
    MissReason(reasons.NEW_TEXT, "the rest was never stored for this model under these settings"),
    MissReason(
        reasons.DIVERGED,
        "the text behind is the same",
        "keep what changes (a date, an id) at the end of the prompt, not at its head",
    ),
    MissReason(
        reasons.REWRITTEN,
        "the template, or the client, rewrote the history: the answer comes back otherwise",
        "only what comes before the last answer can match; see docs/why.md",
    ),
    MissReason(
        reasons.EVICTED,
        "the next page was stored, and is gone",
        "a larger hot_bytes or cold_bytes keeps more; `omlx-cache stats` shows both",
    ),
    MissReason(
        reasons.NOT_STORED,
        "what both share is not stored",
        "ask again when the other request is done. For `no_room` or `refused`: a larger hot_bytes, "
        "queue_bytes or cold_bytes; the log names which, `skips` in `omlx-cache stats` counts it",
    ),
    MissReason(
        reasons.WINDOW_NOT_HELD,
        "more of it is known, but its last window of tokens is not held there",
        _STRIDE,
    ),
    MissReason(
        reasons.SNAPSHOT_MISSING, "more is known, but no snapshot of the state was kept", _STRIDE
    ),
    MissReason(reasons.TOO_SHORT, "a prompt of one token has nothing to restore"),
    MissReason(
        reasons.CORRUPT,
        "a page on the disk was damaged, and is forgotten",
        "check the disk if it happens again",
    ),
    MissReason(reasons.MISMATCH, "a page did not fit the model, and is forgotten"),
    MissReason(
        reasons.UNREADABLE,
        "the disk did not give a page",
        "check the disk: `omlx-cache stats` shows the cold tier's state",
    ),
    MissReason(reasons.UNDECODABLE, "a page is there that this version cannot decode"),
    MissReason(
        reasons.DEADLINE,
        "the disk had not delivered more by the time that the request could wait",
        "allow more: restore_wait_seconds, or deadline= of the session",
    ),
    MissReason(
        reasons.SLOWER_THAN_COMPUTING,
        "the disk has more, and to read that takes longer than to compute it",
        "nothing to do: it is read again when that is quicker, and always with worth_reading=off",
    ),
    MissReason(
        remote.TIMEOUT,
        "the store that machines share did not answer in the time that a request may wait for it",
        f"{_DOCTOR}; more remote_lookup_seconds lets requests wait longer",
    ),
    MissReason(
        remote.UNREACHABLE,
        "nobody answered at the store that machines share, or the connection broke",
        f"see that the store runs and is reached: {_DOCTOR}",
    ),
    MissReason(
        remote.DENIED,
        "the store that machines share did not let this machine in",
        "check remote_password, the user in the address, and its rights: "
        "`omlx-cache doctor --remote`",
    ),
    MissReason(
        remote.THROTTLED,
        "the store that machines share is asked too much, or is not ready",
        "ask it less: remote_writes=reused or shared; or give it more to work with",
    ),
    MissReason(
        remote.FAILED,
        "the store that machines share could not do what it was asked; the log has it",
        "`omlx-cache doctor --remote` says what it answers",
    ),
    MissReason(
        remote.RESTING,
        "the store that machines share failed a moment ago, and is left alone for a while",
        "nothing: it is tried again by itself; `omlx-cache stats` shows why, and "
        "`omlx-cache doctor --remote` what helps",
    ),
    MissReason(
        remote.LOST,
        "the store that machines share had the page when it was asked, and not any more when the "
        "page was read",
        "more memory for the store (maxmemory), or fewer pages: remote_writes=reused or shared",
    ),
    MissReason(
        remote.FOREIGN,
        "the store that machines share has pages that another secret vouches for, or none does",
        "give all machines the same remote_secret and remote_encrypt, or this one a remote_prefix "
        "of its own",
    ),
    MissReason(reasons.UNSUPPORTED, "no adapter reads a cache class of this model"),
    MissReason(reasons.BAD_TOKENS, "the prompt is no flat list of integers"),
    MissReason(reasons.STORE_CLOSED, "the store was closed"),
    MissReason(reasons.ERROR, "something unexpected happened; the log has it"),
    MissReason(
        reasons.ABSENT,
        "the next block is not there; whether it ever was cannot be told, because no prompts are "
        "remembered",
        "have a control socket or a status page: without both no prompts are compared",
    ),
)
MISS_REASONS = {reason.word: reason for reason in _TABLE}


def remedy(word: str) -> str:
    """Return what helps against a miss reason; "" for nothing, or a word that is not known."""
    known = MISS_REASONS.get(word)
    return "" if known is None else known.remedy
