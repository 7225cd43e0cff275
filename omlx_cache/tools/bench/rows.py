"""A figure beside what it is compared with."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """Our time and another's for the same work, in seconds; `limit` marks a physical limit.

    `nbytes` are the bytes that both moved, 0 where rates mean nothing.
    """

    what: str
    ours: float
    compared_with: str
    other: float
    nbytes: int = 0
    limit: bool = False

    @property
    def ratio(self) -> float:
        """The other's time over ours: above 1 we are faster; 1 is a limit reached."""
        return self.other / self.ours

    def rate(self) -> float:
        """Our gigabytes a second, 0 where rates mean nothing."""
        return self.nbytes / self.ours / 1e9

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "ratio": self.ratio}


@dataclass(frozen=True, slots=True)
class Peak:
    """The memory that something took at its height, over the bytes that it delivered."""

    what: str
    peak_bytes: int
    nbytes: int

    @property
    def ratio(self) -> float:
        return self.peak_bytes / self.nbytes

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "ratio": self.ratio}


@dataclass(frozen=True, slots=True)
class Results:
    """All of one run of the benchmarks."""

    size: str
    kv_bytes: int
    machine: dict[str, str]
    rows: tuple[Row, ...]
    peaks: tuple[Peak, ...]

    def to_dict(self) -> dict[str, object]:
        return {
            "size": self.size,
            "kv_bytes": self.kv_bytes,
            "machine": self.machine,
            "rows": [row.to_dict() for row in self.rows],
            "peaks": [peak.to_dict() for peak in self.peaks],
        }
