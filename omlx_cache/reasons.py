"""Why no more was restored, or a page was not stored: the words that stats and sessions use."""

from typing import Final

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
NOT_HELD: Final = "not_held"
"""The live cache no longer holds the tokens (a window that moved on)."""
SNAPSHOT_BUDGET: Final = "snapshot_budget"
CLOSED: Final = "closed"
"""The session was left, aborted or committed before."""


def word(reason: str) -> str:
    """Return a reason's counter name: what stands before its details."""
    return reason.split(":", 1)[0]
