"""What `omlx-cache warm` did."""

from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[int, int], None]
"""Takes what is done, and how much there is."""


@dataclass(frozen=True, slots=True)
class WarmReport:
    """What a run did. `warm_prompts` needed nothing, but a server computes a token of each.

    `stored_bytes` is what was written to the cold tier meanwhile; `durable` says that nothing is
    missing; `server` is the running one that did it, None without.
    """

    prompts: int
    warm_prompts: int
    computed_tokens: int
    stored_bytes: int
    cold_dir: str | None
    durable: bool
    server: str | None = None
