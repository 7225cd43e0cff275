"""The words for why a remote store gave nothing: for requests, counters and people."""

from typing import Final, Literal

Trouble = Literal["refused", "timeout", "auth", "throttled", "lost", "full", "error", "resting"]
"""Why an engine did not answer: no server listens; no answer in time; not let in; told to slow down
(503); the connection broke, or the answer did; no memory or space left; anything else; it was not
asked."""

TIMEOUT: Final = "remote_timeout"
"""It did not answer in the time that a request may wait for it."""
UNREACHABLE: Final = "remote_unreachable"
"""No server listens, or the connection broke."""
DENIED: Final = "remote_denied"
"""It did not let this machine in: password, user or rights."""
THROTTLED: Final = "remote_throttled"
"""It said that it is asked too much, or is not ready."""
FAILED: Final = "remote_failed"
RESTING: Final = "remote_resting"
"""It failed a moment ago, and the tier backs off."""
LOST: Final = "remote_lost"
"""It had the page when it was asked, and not any more when the page was read."""
FOREIGN: Final = "remote_foreign"
"""It has the page, as this machine's secret does not vouch for it: another one does, or none."""

WORDS: dict[Trouble, str] = {
    "refused": UNREACHABLE,
    "lost": UNREACHABLE,
    "timeout": TIMEOUT,
    "auth": DENIED,
    "throttled": THROTTLED,
    "full": FAILED,
    "error": FAILED,
    "resting": RESTING,
}
