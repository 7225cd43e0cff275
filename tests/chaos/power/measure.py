"""Cuts the power at random instants of a store's work, for each durability level."""

import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from omlx_cache_storage.cold.disk import Durability

from ..requests import Requester
from ..subjects import MIXTURES
from ..talk import Asked
from ..tally import Tally
from ..world import KIB, World, roomy_options
from .cut import Disk
from .record import RecordingDisk

LEVELS: tuple[Durability, ...] = ("none", "fsync", "full")
SEQUENCES = 24
CUTS_A_RUN = 6


class Flushed(NamedTuple):
    """A sequence that `flush` reported durable when the log had `at` entries."""

    asked: Asked
    tokens: int
    at: int


@dataclass
class Level:
    """What was found for one durability level. `seconds` are those of the stores' writes."""

    durability: Durability
    cuts: int = 0
    flushed: int = 0
    lost: int = 0
    torn: int = 0
    refused: int = 0
    wrong: int = 0
    failures: int = 0
    seconds: float = 0.0

    @property
    def broken(self) -> bool:
        """True when something is wrong, or lost where nothing may be."""
        return bool(self.failures or self.wrong or (self.lost and self.durability != "none"))


def measure(seed: int, cuts: int, base: Path | None = None) -> list[Level]:
    """Return what so many cuts of each level found."""
    return [_measure(level, seed, cuts, base) for level in LEVELS]


def _measure(durability: Durability, seed: int, cuts: int, base: Path | None) -> Level:
    level = Level(durability)
    number = 0
    while level.cuts < cuts:
        with tempfile.TemporaryDirectory(prefix="omlx-cuts-", dir=base) as name:
            _run(level, Path(name), seed, number, min(CUTS_A_RUN, cuts - level.cuts))
        number += 1
    return level


def _run(level: Level, directory: Path, seed: int, number: int, cuts: int) -> None:
    tally = Tally()
    # Every level gets the same requests and, as far as its log allows, the same cuts.
    world = World("power cut", number, seed, tally, directory / "live", sessions=0, grace=60.0)
    world.directory.mkdir()
    options = {
        **roomy_options(world.draw),
        "durability": level.durability,
        "write_policy": "through",
        "commit_wait_seconds": 86400,
        "queue_bytes": 96 * KIB,
        "hot_bytes": 64 * KIB,
    }
    world.options, disk = dict(options), RecordingDisk()
    world.disk = disk
    mixture = world.draw.choice(list(MIXTURES.values()))
    world.open()
    main = Requester(world, mixture, 0)
    flushed = _fill(world, main, disk, level)
    world.close()
    log, draw = list(disk.log), world.random("cuts", level.durability)
    for cut in range(cuts):
        at = draw.randrange(len(log) + 1)
        remains = Disk(world.directory)
        remains.replay(log[:at], log[at] if at < len(log) else None)
        after = World("power cut", number, seed, tally, directory / f"{cut}", sessions=0, grace=60)
        after.options = dict(options)
        level.torn += remains.materialise(after.directory, draw)
        promised = [item for item in flushed if item.at <= at]
        _look(level, after, Requester(after, mixture, 0), promised)
    level.failures += tally.failed
    level.cuts += cuts


def _fill(world: World, main: Requester, disk: RecordingDisk, level: Level) -> list[Flushed]:
    draw = random.Random(f"{world.seed}:{world.number}")
    flushed: list[Flushed] = []
    kept: list[Asked] = []
    for number in range(SEQUENCES):
        start = draw.choice(kept).tokens if kept and draw.random() < 0.3 else ()
        new = tuple(draw.randrange(1, 50_000) for _ in range(draw.randrange(20, 90)))
        asked = Asked((*start, *new)[:180], f"{number % 5}")
        kept.append(asked)
        began = time.perf_counter()
        main.store(asked)
        if number % 2:
            durable = world.store.flush(60.0)
            at = disk.position
            if durable:
                flushed += [Flushed(a, main.lookup(a), at) for a in kept[-2:]]
        level.seconds += time.perf_counter() - began
    return flushed


def _look(level: Level, world: World, main: Requester, promised: list[Flushed]) -> None:
    """Open what a cut left, and restore all that was promised."""
    world.open()
    for item in promised:
        found = main.restore(item.asked)
        level.flushed += 1
        level.lost += found < item.tokens
    cold = world.store.stats().cold
    level.refused += cold.corrupt_pages
    level.wrong += sum(
        failure["verdict"] == "wrong" for failure in world.tally.document()["failures"]
    )
    world.close()
    world.check_closed()


def table(levels: list[Level]) -> str:
    """Return the table of the reliability page."""
    base = levels[0].seconds
    lines = [
        "| durability | cuts | flushed sequences | lost | torn files | refused when read "
        "| wrong restores | storing, ratio to `none` |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| `{level.durability}` | {level.cuts:,} | {level.flushed:,} | {level.lost:,} "
        f"| {level.torn:,} | {level.refused:,} | {level.wrong:,} | {level.seconds / base:.2f} |"
        for level in levels
    ]
    return "\n".join(lines) + "\n"
