"""What a process and its store take at one moment, and whether that stays the same."""

import csv
import gc
import os
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import combinations
from pathlib import Path
from statistics import median

import mlx.core as mx

from kit.storage import disk_usage
from omlx_cache import BlockStore

from ..memory import resident_bytes

WARM_UP = 0.25
FEWEST = 6


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment; bytes and counts."""

    seconds: float
    requests: int
    rss_bytes: int
    active_bytes: int
    objects: int
    threads: int
    descriptors: int
    hot_bytes: int
    hot_peak_bytes: int
    cold_bytes: int
    cold_peak_bytes: int
    directory_bytes: int


# How much more of each may be there at the end than after the warm-up: a share, or an amount.
TOLERANCES = {
    "rss_bytes": (0.05, 8 * 2**20),
    "active_bytes": (0.05, 2**20),
    "objects": (0.02, 2_000),
    "threads": (0.0, 0.5),
    "descriptors": (0.0, 1.5),
    "hot_bytes": (0.05, 64 * 1024),
    "cold_bytes": (0.05, 512 * 1024),
    "directory_bytes": (0.05, 512 * 1024),
}


def take(store: BlockStore, seconds: float, requests: int) -> Sample:
    """Look at everything; collects garbage first."""
    gc.collect()
    stats = store.stats()
    return Sample(
        seconds,
        requests,
        resident_bytes(),
        mx.get_active_memory(),
        len(gc.get_objects()),
        threading.active_count(),
        len(os.listdir("/dev/fd")),
        stats.hot.nbytes,
        stats.hot.peak_bytes,
        stats.cold.nbytes,
        stats.cold.peak_bytes,
        disk_usage(store.settings.cold_dir),
    )


def growth(samples: Sequence[Sample], name: str) -> float:
    """Return how much more there is at the end than after the warm-up, by Theil and Sen's slope:
    the median over all pairs, which no outlier moves."""
    settled = samples[int(len(samples) * WARM_UP) :]
    points = [(sample.seconds, float(getattr(sample, name))) for sample in settled]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if b[0] > a[0]]
    return median(slopes) * (points[-1][0] - points[0][0]) if slopes else 0.0


def allowed(samples: Sequence[Sample], name: str) -> float:
    """Return the growth that counts as none."""
    share, amount = TOLERANCES[name]
    return max(amount, share * median(getattr(sample, name) for sample in samples))


def is_flat(samples: Sequence[Sample], name: str) -> bool:
    """True when a quantity does not grow; too few samples show nothing."""
    return len(samples) < FEWEST or growth(samples, name) <= allowed(samples, name)


def table(samples: Sequence[Sample]) -> str:
    """Return a Markdown table: both ends of what follows the warm-up, the growth, the verdict."""
    settled = samples[int(len(samples) * WARM_UP) :]
    lines = [
        "| what | after warm-up | at the end | trend | allowed | |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for name in TOLERANCES:
        first, last = getattr(settled[0], name), getattr(settled[-1], name)
        verdict = "flat" if is_flat(samples, name) else "**grows**"
        lines.append(
            f"| {name} | {first:,} | {last:,} | {growth(samples, name):+,.0f} "
            f"| {allowed(samples, name):,.0f} | {verdict} |"
        )
    return "\n".join(lines) + "\n"


def write_csv(samples: Sequence[Sample], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Sample)])
        writer.writeheader()
        writer.writerows(asdict(sample) for sample in samples)
