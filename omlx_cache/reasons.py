"""The miss reasons, and why a page was not stored: the words of stats and sessions, and the
sentences of miss reasons for people."""

from typing import Final, NamedTuple

from omlx_cache_storage import errors

ABSENT: Final = "absent"
"""The next block was never stored, or was evicted."""
NO_RESTORE_POINT: Final = "no_restore_point"
"""Blocks are there, but a window or a recurrent state for their end is not."""
CORRUPT: Final = "corrupt"
UNREADABLE: Final = "unreadable"
"""The disk did not give the page, now or a short while ago."""
UNDECODABLE: Final = "undecodable"
"""The page may be sound, but this process cannot decode it; its file stays."""
MISMATCH: Final = "mismatch"
DEADLINE: Final = "deadline"
"""The disk had not delivered more by the time that the request could wait."""
SLOWER_THAN_COMPUTING: Final = "slower_than_computing"
"""The disk has more, and reading takes longer than computing; both estimates follow after a
colon."""
UNSUPPORTED: Final = "unsupported"
"""A cache class without adapter; the class's name follows after a colon."""
BAD_TOKENS: Final = "bad_tokens"
TOO_SHORT: Final = "too_short"
"""Nothing to restore: the last token of a prompt is always computed."""
STORE_CLOSED: Final = "store_closed"
"""The store was closed before: nothing can be found in it, nor stored."""
ERROR: Final = "error"
"""An unexpected error, logged; the request goes on as a miss."""

LAYOUT_CHANGED: Final = "layout_changed"
"""The committed cache has other classes than the session's."""
POSITION: Final = "position"
"""The cache's offset is not what the session expects (speculation, trims)."""
NO_ROOM: Final = "no_room"
"""The hot tier could not make room within its budget."""
REFUSED: Final = "refused"
"""Memory is full of pages that were used a short while ago, and the page has no other place."""
NOT_HELD: Final = "not_held"
"""The live cache no longer holds the tokens (a window that moved on)."""
SNAPSHOT_BUDGET: Final = "snapshot_budget"
CLOSED: Final = "closed"
"""The session was left, aborted or committed before."""

NEW_TEXT: Final = "new_text"
"""The cache had no more of the prompt, and no record that it ever had. No miss."""
DIVERGED: Final = "diverged"
"""It parts from an earlier prompt and goes on alike; what they share was restored."""
REWRITTEN: Final = "rewritten"
"""The chat's template, the client or the server changed the last answer or what opened it."""
EVICTED: Final = "evicted"
"""It was stored, and had to leave."""
NOT_STORED: Final = "not_stored"
"""An earlier prompt had it, and it was not stored: not yet, or without room."""
NO_DISK: Final = "no_disk"
"""It was stored, memory had to evict it, and the disk could not have it: full, read-only, away."""
WINDOW_NOT_HELD: Final = "window_not_held"
"""The blocks are there; the last window of tokens for their end is not."""
SNAPSHOT_MISSING: Final = "snapshot_missing"
"""The blocks are there; the recurrent state for their end is not."""


def word(reason: str) -> str:
    return reason.split(":", 1)[0]


class MissReason(NamedTuple):
    """A sentence, and what helps: nothing where nothing has to be done."""

    sentence: str
    remedy: str = ""


MISS_REASONS = {
    NEW_TEXT: MissReason("not stored now for this model under these settings"),
    DIVERGED: MissReason(
        "the text after that is the same",
        "keep what changes (a date, an id) at the end of the prompt, not at its head",
    ),
    REWRITTEN: MissReason(
        "the history comes back changed by your client, by the chat template, or by the server, "
        "which trims white space",
        "only what comes before the changed answer can match: the page Troubleshooting has the "
        "causes",
    ),
    EVICTED: MissReason(
        "the next page was stored, and is gone",
        "`omlx-cache doctor` says what made it leave: a full disk, a small budget, pins, or a "
        "limit of this store; if it finds nothing, a larger `omlx-cache quota` or hot_bytes keeps "
        "more",
    ),
    NO_DISK: MissReason(
        "memory had no room for the page, and the disk takes none",
        "`omlx-cache doctor` says what is wrong with the disk, or which limit is spent, and what "
        "helps",
    ),
    NOT_STORED: MissReason(
        "what both share is not stored",
        "without a word in parentheses, ask again when the other request is done. For `no_room` or "
        "`refused`: `omlx-cache doctor`, or a larger hot_bytes, queue_bytes or cold_bytes; the "
        "log names which, `skips` in `omlx-cache stats --all` counts it",
    ),
    WINDOW_NOT_HELD: MissReason(
        "more of it is known, but its last window of tokens is not held there",
        "a smaller snapshot_stride keeps more restore points",
    ),
    SNAPSHOT_MISSING: MissReason(
        "more is known, but no snapshot of the state was kept",
        "a smaller snapshot_stride keeps more restore points",
    ),
    TOO_SHORT: MissReason("a prompt of one token has nothing to restore"),
    CORRUPT: MissReason(
        "a page on the disk was damaged, and is forgotten",
        "pages behind it may be damaged too: `omlx-cache doctor --all --fix` finds all at once, "
        "else each costs a request; then check the disk",
    ),
    MISMATCH: MissReason("a page did not fit the model, and is forgotten"),
    UNREADABLE: MissReason(
        "the disk did not give a page",
        "check the disk: `omlx-cache stats` shows the cold tier's state",
    ),
    UNDECODABLE: MissReason("a page is there that this version cannot decode"),
    DEADLINE: MissReason(
        "the disk had not delivered more by the time that the request could wait",
        "look at the disk: `omlx-cache doctor`; a program gives its session more by deadline=",
    ),
    SLOWER_THAN_COMPUTING: MissReason(
        "the disk has more, and to read that takes longer than to compute it",
        "nothing to do: it is read again when that is quicker, and always with worth_reading=off",
    ),
    errors.REMOTE_TIMEOUT: MissReason(
        "the store that machines share did not answer in the time that a request may wait for it",
        "`omlx-cache doctor --remote` measures the way there; more remote_lookup_seconds lets "
        "requests wait longer",
    ),
    errors.REMOTE_UNREACHABLE: MissReason(
        "nobody answered at the store that machines share, or the connection broke",
        "see that the store runs and is reached: `omlx-cache doctor --remote` measures the way "
        "there",
    ),
    errors.REMOTE_DENIED: MissReason(
        "the store that machines share did not let this machine in",
        "check remote_password, the user in the address, and its rights: "
        "`omlx-cache doctor --remote`",
    ),
    errors.REMOTE_THROTTLED: MissReason(
        "the store that machines share is asked too much, or is not ready",
        "ask it less: remote_writes=reused or shared; or give it more to work with",
    ),
    errors.REMOTE_FAILED: MissReason(
        "the store that machines share could not do what it was asked; the log has it",
        "`omlx-cache doctor --remote` says what it answers",
    ),
    errors.REMOTE_RESTING: MissReason(
        "the store that machines share failed a moment ago, and the tier backs off",
        "nothing: it is tried again by itself; `omlx-cache stats` shows why, and "
        "`omlx-cache doctor --remote` what helps",
    ),
    errors.REMOTE_LOST: MissReason(
        "the store that machines share had the page when it was asked, and not any more when the "
        "page was read",
        "more memory for the store (maxmemory), or fewer pages: remote_writes=reused or shared",
    ),
    errors.REMOTE_FOREIGN: MissReason(
        "the store that machines share has pages that another secret vouches for, or none does",
        "give all machines the same remote_secret and remote_encrypt, or this one a prefix= of its "
        "own in the URL",
    ),
    UNSUPPORTED: MissReason("no adapter reads a cache class of this model"),
    BAD_TOKENS: MissReason("the prompt is no flat list of integers"),
    STORE_CLOSED: MissReason("the store was closed"),
    ERROR: MissReason("something unexpected happened; the log has it"),
    ABSENT: MissReason(
        "the next block is not there; whether it ever was cannot be told, because no prompts are "
        "remembered",
        "have a control socket or a status page: without both no prompts are compared",
    ),
}


def described(word: str) -> MissReason:
    return MISS_REASONS.get(word, MissReason(word))
