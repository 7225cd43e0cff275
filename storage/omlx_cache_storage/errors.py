"""The errors that cross module borders; each says what was expected and what was found."""

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
