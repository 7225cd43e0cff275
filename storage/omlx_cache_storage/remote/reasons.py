"""Why a remote store gave nothing: the words that requests, counters and people are told."""

from typing import Final

from omlx_cache_storage.errors import PageUnreadable
from omlx_cache_storage.remote.engine import Trouble

TIMEOUT: Final = "remote_timeout"
"""It did not answer in the time that a request may wait for it."""
UNREACHABLE: Final = "remote_unreachable"
"""Nobody listens, or the connection broke."""
DENIED: Final = "remote_denied"
"""It did not let this machine in: password, user or rights."""
THROTTLED: Final = "remote_throttled"
"""It said that it is asked too much, or is not ready."""
FAILED: Final = "remote_failed"
RESTING: Final = "remote_resting"
"""It failed a moment ago, and is left alone for a while."""
LOST: Final = "remote_lost"
"""It had the page when it was asked, and not any more when the page was read."""

_WORDS: dict[Trouble, str] = {
    "refused": UNREACHABLE,
    "lost": UNREACHABLE,
    "timeout": TIMEOUT,
    "auth": DENIED,
    "throttled": THROTTLED,
    "full": FAILED,
    "error": FAILED,
}


def reason_of(trouble: Trouble) -> str:
    """Return the word for what an engine raised."""
    return _WORDS[trouble]


class PageNotSent(PageUnreadable):
    """A page did not come, for one of these reasons."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(f"{reason}: {text}")
        self.reason = reason
