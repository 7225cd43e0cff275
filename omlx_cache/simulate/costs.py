"""What computing a token and reading a byte cost: how much time a hit saves."""

from dataclasses import dataclass

DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Costs:
    """A token at the head of a prompt takes `1 / prefill` seconds, and twice as long `doubles`
    tokens deep, for attention grows with depth. The disk gives `read` bytes a second."""

    prefill: float = 1000.0
    doubles: int = 32_768
    read: float = 2e9

    def computing(self, tokens: int) -> float:
        """Return what the first tokens of a prompt take to compute, in seconds."""
        return (tokens + tokens * tokens / (2 * self.doubles)) / self.prefill

    def saved(self, tokens: int, cold_bytes: int) -> float:
        """Return what restoring the first tokens saves, of which the disk gives some bytes."""
        return self.computing(tokens) - cold_bytes / self.read
