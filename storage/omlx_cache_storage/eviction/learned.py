"""What a policy has learned of uses, as a value that outlives the process."""

from typing import NamedTuple

from omlx_cache_storage.eviction.ages import BUCKETS, end_of

VERSION = 1
_MOST_USES = 1e12


class Learned(NamedTuple):
    """Uses by log-age, how many there were in all, and the patience in seconds."""

    uses: tuple[float, ...]
    seen: int
    patience_seconds: float

    def document(self) -> dict[str, object]:
        """Return plain values, for a file."""
        return {
            "version": VERSION,
            "uses": [round(uses, 3) for uses in self.uses],
            "seen": self.seen,
            "patience_seconds": self.patience_seconds,
        }


def parse_learned(document: dict[str, object]) -> Learned | None:
    """Return what a file says, None for what no policy of this version has written."""
    uses, seen = document.get("uses"), document.get("seen")
    patience = document.get("patience_seconds")
    if document.get("version") != VERSION or not isinstance(uses, list) or len(uses) != BUCKETS:
        return None
    if not all(_is_figure(figure, _MOST_USES) for figure in uses):
        return None
    if isinstance(seen, bool) or not isinstance(seen, int) or not _is_figure(seen, _MOST_USES):
        return None
    if not isinstance(patience, int | float) or not _is_figure(patience, end_of(BUCKETS)):
        return None
    return Learned(tuple(map(float, uses)), seen, float(patience))


def _is_figure(value: object, most: float) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= most
