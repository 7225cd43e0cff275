"""A figure beside its reference: sizes, rows, and how they are timed."""

import datetime
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeVar

import mlx.core as mx

from omlx_cache import __version__
from omlx_cache.settings.machine import probe, text_of
from omlx_cache.settings.sizes import format_size

BLOCK_SIZE = 256
ITEM_BYTES = 2
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Size:
    """A bfloat16 KV cache of `tokens` (whole blocks); `model_tokens` are prefilled by the small
    model, `chain_tokens` looked up, `files` scanned."""

    name: str
    layers: int
    heads: int
    head_dim: int
    tokens: int
    runs: int
    model_tokens: int
    chain_tokens: int
    files: int

    @property
    def kv_bytes(self) -> int:
        return 2 * self.layers * self.heads * self.tokens * self.head_dim * ITEM_BYTES


SIZES = {
    size.name: size
    for size in (
        Size("tiny", 2, 1, 16, 2 * BLOCK_SIZE, 2, 64, 4 * BLOCK_SIZE, 40),
        Size("small", 8, 8, 64, 4096, 7, 1024, 32_768, 2_000),
        Size("normal", 16, 8, 64, 8192, 7, 2048, 131_072, 10_000),
        Size("large", 32, 8, 128, 32_768, 3, 4096, 131_072, 100_000),
    )
}


@dataclass(frozen=True, slots=True)
class BenchRow:
    """Our time and another's for the same work, in seconds; `limit` marks a physical limit. Both
    moved `nbytes`, 0 where rates mean nothing."""

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


@dataclass(frozen=True, slots=True)
class Peak:
    """The memory that something took at its height, and the bytes that it delivered."""

    what: str
    peak_bytes: int
    nbytes: int

    @property
    def ratio(self) -> float:
        return self.peak_bytes / self.nbytes


@dataclass(frozen=True, slots=True)
class Loss:
    """A codec's bytes of a token and layer, and its loss. Errors are squared, over squared sizes;
    `variation` is that of attention weights, 0 to 1, `loud_variation` the same where four key
    channels of each head are twenty times as loud."""

    codec: str
    bytes_per_token: float
    ratio: float
    key_error: float
    value_error: float
    variation: float
    loud_variation: float


class Measured(NamedTuple):
    rows: Sequence[BenchRow] = ()
    peaks: Sequence[Peak] = ()
    losses: Sequence[Loss] = ()


@dataclass(frozen=True, slots=True)
class Results:
    size: Size
    machine: Mapping[str, str]
    parts: Sequence[Measured]

    def all(self, kind: str) -> list[Any]:
        return [one for part in self.parts for one in getattr(part, kind)]

    def to_dict(self) -> dict[str, object]:
        return {
            "size": self.size.name,
            "kv_bytes": self.size.kv_bytes,
            "machine": dict(self.machine),
            "rows": [{**asdict(row), "ratio": row.ratio} for row in self.all("rows")],
            "peaks": [{**asdict(peak), "ratio": peak.ratio} for peak in self.all("peaks")],
            "losses": [asdict(loss) for loss in self.all("losses")],
        }


class PreparedWork(NamedTuple):
    """Work that takes the result of `prepare`, which precedes each run and is not timed."""

    prepare: Callable[[], Any]
    work: Callable[[Any], object]


Work = Callable[[], object] | PreparedWork


def seconds(work: Work) -> float:
    """Return the seconds of one run; its result is freed outside the measured time."""
    if isinstance(work, PreparedWork):
        work = partial(work.work, work.prepare())
    began = time.perf_counter()
    result = work()
    ended = time.perf_counter()
    del result
    return ended - began


def in_turn(
    works: Mapping[Name, Work],
    runs: int,
    before: Callable[[], object] | None = None,
    take: Callable[[Iterable[float]], float] = median,
) -> dict[Name, float]:
    """Return the median seconds of each, or what `take` makes of them, after one run that is not
    counted. All are run once before any is run again, so that a slow moment of the machine hits
    all. `before` precedes every run and is not timed."""
    spent: dict[Name, list[float]] = {name: [] for name in works}
    for _ in range(runs + 1):
        for name, work in works.items():
            if before is not None:
                before()
            spent[name].append(seconds(work))
    return {name: take(times[1:]) for name, times in spent.items()}


def beside(
    what: str,
    ours: Work,
    runs: int,
    *,
    limits: Mapping[str, Sequence[Work]] | None = None,
    peers: Mapping[str, Sequence[Work]] | None = None,
    nbytes: int = 0,
    before: Callable[[], object] | None = None,
    take: Callable[[Iterable[float]], float] = median,
) -> list[BenchRow]:
    """Return a row beside each of the limits and peers, all timed in turn. Of the ways under one
    name the fastest counts."""
    others = {**(limits or {}), **(peers or {})}
    works: dict[tuple[str, int], Work] = {("", 0): ours}
    works |= {(name, n): way for name, ways in others.items() for n, way in enumerate(ways)}
    times = in_turn(works, runs, before, take)
    rows = []
    for name, ways in others.items():
        fastest = min(times[name, n] for n in range(len(ways)))
        rows.append(BenchRow(what, times["", 0], name, fastest, nbytes, name in (limits or {})))
    return rows


def describe_machine() -> dict[str, str]:
    """Describe the machine in general words, never by a host's name or a path."""
    # macOS has no such call: a process may use every core.
    own = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    device = mx.default_device()
    kind = "CPU" if device == mx.cpu else f"GPU {mx.device_info(device).get('device_name', '')}"
    processor, is_virtual = _processor()
    mac = platform.mac_ver()[0]
    return {
        "processor": processor,
        "virtual machine": "yes" if is_virtual else "not seen",
        "cores": str(len(own) if own else os.cpu_count()),
        "memory": format_size(probe().memory_bytes),
        "MLX device": kind.strip(),
        "Metal": "yes" if mx.metal.is_available() else "no",
        "omlx-cache": __version__,
        "MLX": version("mlx"),
        "mlx-lm": version("mlx-lm"),
        "Python": platform.python_version(),
        "system": f"{f'macOS {mac}' if mac else platform.system()} {platform.machine()}",
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
    }


def _processor() -> tuple[str, bool]:
    if platform.system() == "Darwin":
        said = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string", "kern.hv_vmm_present"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        name, _, virtual = said.strip().partition("\n")
        return name, virtual == "1"
    said = text_of(Path("/proc/cpuinfo"))
    named = re.search(r"^model name\s*: (.*)$", said, re.MULTILINE)
    return named[1] if named else platform.machine(), " hypervisor" in said
