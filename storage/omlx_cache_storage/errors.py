"""The errors that cross module borders, each with what was expected and what was found; and the
words for why a remote store gave nothing, which `omlx_cache/reasons.py` explains."""

from typing import Final, Literal

_LONGEST = 500


class CacheError(Exception):
    """Base of every error that this project raises on purpose."""


class PageError(CacheError):
    """A page cannot be used. `reason` is a short word for the miss counters. The text may quote a
    file, which may contain anything: it is cut to a log line."""

    reason = "page"

    def __init__(self, text: str = "") -> None:
        super().__init__(text[:_LONGEST])


class CorruptPage(PageError):
    """The bytes are not the written ones: wrong length, checksum or header."""

    reason = "corrupt"


class ForeignPage(PageError):
    """A sound page, but not the one that was asked for (key, group, shape, dtype or codec)."""

    reason = "mismatch"


class PageUnreadable(PageError):
    """The disk refused: the file is gone, or reading it failed."""

    reason = "unreadable"


class PageGone(PageUnreadable):
    """The page was evicted, deleted or replaced since it was looked up: no fault of the disk."""

    reason = "absent"


class PageUnanswered(PageUnreadable):
    """The disk does not answer: the caller goes on without it, and its read may end later."""


class PageNotSent(PageUnreadable):
    """Other machines did not send the page."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(f"{reason}: {text}")
        self.reason = reason


class UndecodablePage(PageError):
    """A page that may be sound, and that this process cannot decode: zstd is not installed, or a
    later version of the format or of a packing wrote it. It stays where it is."""

    reason = "undecodable"


Trouble = Literal["refused", "timeout", "auth", "throttled", "lost", "full", "error", "resting"]
"""Why an engine did not answer. `auth`: not let in; `throttled`: told to slow down; `lost`: the
connection broke, or the answer did; `full`: no memory or space left; `resting`: it was not
asked."""

REMOTE_TIMEOUT: Final = "remote_timeout"
REMOTE_UNREACHABLE: Final = "remote_unreachable"
REMOTE_DENIED: Final = "remote_denied"
REMOTE_THROTTLED: Final = "remote_throttled"
REMOTE_FAILED: Final = "remote_failed"
REMOTE_RESTING: Final = "remote_resting"
REMOTE_LOST: Final = "remote_lost"
REMOTE_FOREIGN: Final = "remote_foreign"
"""It has the page, as this machine's secret does not vouch for it: another one does, or none."""

REMOTE_WORDS: dict[Trouble, str] = {
    "refused": REMOTE_UNREACHABLE,
    "lost": REMOTE_UNREACHABLE,
    "timeout": REMOTE_TIMEOUT,
    "auth": REMOTE_DENIED,
    "throttled": REMOTE_THROTTLED,
    "full": REMOTE_FAILED,
    "error": REMOTE_FAILED,
    "resting": REMOTE_RESTING,
}
