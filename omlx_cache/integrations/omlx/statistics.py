"""PrefixStatistics: what oMLX counts of its prefix cache, under its names."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class PrefixStatistics:
    """Look-ups and tokens. What oMLX counts of parts that this cache lacks, its partial blocks and
    SpecPrefill's prefixes, stays 0."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    tokens_saved: int = 0
    tokens_matched_total: int = 0
    tokens_requested_total: int = 0
    block_size: int = 0
    partial_block_skips: int = 0
    partial_tokens_skipped: int = 0
    last_partial_tokens_skipped: int = 0
    last_tokens_to_next_block: int = 0
    exact_prefix_hits: int = 0
    exact_prefix_misses: int = 0
    exact_prefix_tokens_restored: int = 0
    exact_prefix_stores: int = 0
    exact_prefix_store_failures: int = 0

    @property
    def total_queries(self) -> int:
        return self.hits + self.misses

    @property
    def hit_rate(self) -> float:
        return self.hits / self.total_queries if self.total_queries else 0.0

    def look_up(self, asked: int, found: int) -> None:
        """Count a prompt, and how many of its tokens were restored."""
        self.hits += found > 0
        self.misses += not found
        self.tokens_saved += found
        self.tokens_matched_total += found
        self.tokens_requested_total += asked

    def to_dict(self) -> dict[str, Any]:
        """Return the counts by their names."""
        return {**asdict(self), "total_queries": self.total_queries, "hit_rate": self.hit_rate}
