"""What a fetch from the prompt cache found."""

from dataclasses import dataclass

from omlx_cache.requests.log import AskedRequest


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one fetch found, for a log line. `restored_tokens` = hot + cold."""

    prompt_tokens: int
    restored_tokens: int
    cold_tokens: int
    seconds: float
    miss_reason: str | None
    asked: AskedRequest
