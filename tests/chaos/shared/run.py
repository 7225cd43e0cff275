"""The rounds on shared directories: a tight one, one on a small disk, one with room for all."""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ..faults.base import Unavailable
from ..faults.mounts import mount
from ..tally import Tally
from .arena import Arena, Plan
from .disturbances import ROOMY, SMALL_DISK, TIGHT, Full

COUNTED = ("stored", "asked", "flushes", "failed flushes", "looked up", "read", "looks", "found",
           "evicted", "stored twice", "audits", "exact samples")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Length:
    """Seconds of the tight directory; the other two rounds take a fifth of that each."""

    seconds: float
    kill_every: float = 1.0

    @property
    def other(self) -> float:
        return max(4.0, self.seconds / 5)


def plans(length: Length, seed: int) -> dict[str, Plan]:
    """Return the rounds by name."""
    repeat = f"python -m tests.chaos shared --seed {seed} --kill-every {length.kill_every}"
    plan = Plan(length.seconds, seed, kill_every=length.kill_every, repeat=repeat)
    # At least one turn of each disturbance, and two quiet moments.
    often = replace(
        plan,
        disturb_every=min(plan.disturb_every, max(3.0, length.other / 4)),
        audit_every=min(plan.audit_every, max(4.0, length.other / 2)),
        seconds=length.other,
    )
    tight = replace(often, seconds=length.seconds, turns=TIGHT)
    return {
        "tight": tight,
        "small disk": replace(often, turns=SMALL_DISK),
        "roomy": replace(often, roomy=True, turns=ROOMY),
    }


def run(plan: Plan, tally: Tally, directory: Path) -> Arena | None:
    """Run one plan in a directory below another; None where this machine does not let it."""
    with contextlib.ExitStack() as ending:
        if Full in plan.turns:
            try:
                ending.enter_context(_small_disk(directory, 2 * plan.budget))
            except Unavailable as error:
                tally.skip(Full.name, str(error))
                return None
        cold = directory / "cold"
        cold.mkdir(mode=0o700)
        arena = Arena(plan, cold, tally)
        arena.run()
        return arena


@contextlib.contextmanager
def _small_disk(directory: Path, nbytes: int) -> Iterator[None]:
    mount("-t", "tmpfs", "-o", f"size={nbytes},nr_inodes=100000,mode=0700", "chaos", str(directory))
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def run_all(length: Length, seed: int, tally: Tally, base: Path | None, only: str = "") -> str:
    """Run every round, or one; return what was done, in words."""
    lines = []
    for number, (name, plan) in enumerate(plans(length, seed).items()):
        if only not in ("", name):
            continue
        before = {counted: tally.sum(counted) for counted in COUNTED}
        with tempfile.TemporaryDirectory(prefix=f"omlx-chaos-{number}-", dir=base) as directory:
            sys.stderr.write(f"{name}: {plan.seconds:.0f} seconds\n")
            arena = run(plan, tally, Path(directory))
        if arena is None:
            continue
        sums = {counted: tally.sum(counted) - before[counted] for counted in COUNTED}
        lines.append(f"{name}: {_words(arena, sums)}")
    return "\n".join(lines) + "\n"


def _words(arena: Arena, sums: dict[str, int]) -> str:
    samples = arena.sampler.counts
    done = ", ".join(f"{counted} {count:,}" for counted, count in sums.items())
    return (
        f"{arena.plan.seconds:.0f} s, budget {arena.plan.budget:,} bytes, highest sample "
        f"{arena.sampler.peak:,}, {samples['exact']:,} samples with all processes stopped and "
        f"{samples['sure']:,} on the move; {done}"
    )
