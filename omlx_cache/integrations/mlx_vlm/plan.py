"""The memory plan that mlx-vlm asks its cache for before each prefill."""

from collections.abc import Sequence
from typing import Any


class MemoryPlan:
    """Reserves nothing: a store keeps within budgets of its own, and leaves them no further than a
    short machine makes it. Remembers the lengths, as the coordinator reads them."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.prefix_lengths: list[int] = []
        self.chunk_size: int | None = None

    def prepare(
        self,
        lengths: Sequence[int],
        *,
        chunk_size: int | None = None,
        prefix_lengths: Sequence[int] | None = None,
    ) -> int:
        self.lengths = list(lengths)
        self.prefix_lengths = list(prefix_lengths or [0] * len(self.lengths))
        self.chunk_size = chunk_size
        return 0

    def observe_cache(self, *_observed: Any, **_options: Any) -> int:
        return 0

    def reserve_bytes(self, live_bytes: int = 0) -> int:
        return 0

    def restore_bytes(self, *_restored: Any) -> int:
        return 0
