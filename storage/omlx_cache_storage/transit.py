"""Room in memory for pages that only pass through it, on their way to the disk."""

SHARE = 8
"""At most this part of memory: it is set aside when a page is refused a place of its own, and given
back when none has passed for a while."""
LINGER_NS = 60 * 1_000_000_000


class Transit:
    """Counts bytes: `used` by pages that pass, `aside` kept for them, no less. Not thread-safe: its
    owner's lock guards it."""

    def __init__(self, limit_bytes: int) -> None:
        self._most = limit_bytes // SHARE
        self._last_ns = 0
        self.used = 0
        self.aside = 0

    @property
    def idle(self) -> int:
        """The bytes that are set aside and not used."""
        return self.aside - self.used

    def has_room(self, nbytes: int) -> bool:
        """True when a page may pass now: one larger than the share, by itself."""
        return not self.used or self.used + nbytes <= self._most

    def enter(self, nbytes: int, now_ns: int) -> None:
        """Note that a page is about to pass."""
        self.used += nbytes
        self.aside = max(self.aside, self.used)
        self._last_ns = now_ns

    def leave(self, nbytes: int) -> None:
        """Note that a page has gone, or will not come."""
        self.used -= nbytes

    def settle(self, now_ns: int) -> None:
        """Give back what nobody has used for a while."""
        if self.aside > self.used and now_ns - self._last_ns > LINGER_NS:
            self.aside = self.used
