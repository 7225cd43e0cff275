"""One request in figures: counts, times and a reason; no tokens and no text."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request at one moment. `asked_at` is in seconds since the epoch; `total_seconds`, from then
    to its end, is None while it is under way. In a server both count from the request's arrival,
    and so do the `held_seconds` of one that is held.

    `restored_tokens` include the `cold_tokens` that the disk gave and the `remote_tokens` that came
    from other machines; `reason` says why no more was
    restored, None when nothing was left. `held_seconds` it waited for another request that
    computed its blocks. `computed_tokens` of the prompt were fed in `compute_seconds`.
    """

    number: int
    asked_at: float
    namespace: str
    model: str
    salt: str
    prompt_tokens: int
    restored_tokens: int = 0
    cold_tokens: int = 0
    restore_seconds: float = 0.0
    held_seconds: float = 0.0
    reason: str | None = None
    computed_tokens: int = 0
    compute_seconds: float = 0.0
    generated_tokens: int = 0
    total_seconds: float | None = None
    remote_tokens: int = 0

    def to_dict(self) -> dict[str, object]:
        """Return plain values, for JSON and the control socket."""
        return asdict(self)
