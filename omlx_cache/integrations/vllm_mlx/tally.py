"""What a prefix cache counts for vllm-mlx's status page and metrics."""

from dataclasses import dataclass

MB = 1 << 20


@dataclass(slots=True)
class Tally:
    """Look-ups and stores since the start, or since somebody asked to count anew; `evicted` is
    what the store had evicted by then."""

    hits: int = 0
    misses: int = 0
    tokens_saved: int = 0
    rejected: int = 0
    evicted: int = 0

    def look_up(self, restored: int) -> None:
        """Count a look-up that gave so many tokens."""
        self.hits += restored > 0
        self.misses += restored == 0
        self.tokens_saved += restored

    def report(
        self, entries: int, used_bytes: int, limit_bytes: int, evicted: int
    ) -> dict[str, float]:
        """Return what its own cache reports, under the same names."""
        asked = self.hits + self.misses
        return {
            "hits": self.hits,
            "misses": self.misses,
            "hit_rate": round(self.hits / asked, 4) if asked else 0.0,
            "evictions": evicted - self.evicted,
            "tokens_saved": self.tokens_saved,
            "current_memory_mb": round(used_bytes / MB, 2),
            "max_memory_mb": round(limit_bytes / MB, 2),
            "memory_utilization": round(used_bytes / limit_bytes, 4) if limit_bytes else 0.0,
            "entry_count": entries,
            "store_rejections": self.rejected,
        }
