"""The campaign: rounds of every kind in turns until the goals are reached or time is up."""

import faulthandler
import gc
import itertools
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from omlx_cache.upkeep.keeper import release_freed_memory

from .damage import run_damage
from .faults import FAULTS
from .kills import run_kills
from .memory import owned_bytes, resident_bytes
from .models import run_models
from .rounds import run_round
from .tally import Tally
from .world import World

Round = Callable[[World], None]
KILLS, DAMAGE = "kill -9", "damage between runs"
ROUND_SECONDS = 240.0
_PROGRESS_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Goals:
    """When a campaign is done: all counts reached (0 asks for none), or `seconds` over."""

    seconds: float
    kills: int = 0
    flips: int = 0
    sessions: int = 0

    def left(self, tally: Tally) -> dict[str, int]:
        """Return what is not reached yet."""
        have = {
            "kills": (self.kills, tally.counted(KILLS)),
            "flips": (self.flips, tally.counted("bit flips")),
            "sessions": (self.sessions, tally.sum("sessions")),
        }
        return {name: goal - count for name, (goal, count) in have.items() if count < goal}

    @property
    def counted(self) -> bool:
        return bool(self.kills or self.flips or self.sessions)


def rounds() -> dict[str, Round]:
    """Return every kind of round by the name of its fault."""
    plain: dict[str, Round] = {
        name: partial(run_round, make=fault) for name, fault in FAULTS.items()
    }
    return {**plain, DAMAGE: run_damage, KILLS: run_kills, "real models": run_models}


class Campaign:
    """Runs rounds on the calling thread; `report` is called each ten seconds and at the end."""

    def __init__(
        self,
        seed: int,
        tally: Tally,
        base: Path | None,
        *,
        sessions: int,
        grace: float,
        without: frozenset[str] = frozenset(),
        only: str = "",
        report: Callable[[], None],
    ) -> None:
        self.seed, self.tally = seed, tally
        self._base = base
        self._sessions, self._grace = sessions, grace
        self._kinds = {
            name: run
            for name, run in rounds().items()
            if name not in without and only in ("", name)
        }
        if not self._kinds:
            raise SystemExit(f"no such fault: {only}; there are {', '.join(rounds())}")
        self._report = report
        self._memory: list[int] = []
        self._now = ("", time.monotonic())
        self._ended = threading.Event()

    def run(self, goals: Goals) -> None:
        """Run rounds until the goals are reached; stops cleanly at Ctrl-C."""
        began = time.monotonic()
        watch = threading.Thread(target=self._watch, args=(began,), daemon=True)
        watch.start()
        try:
            for kind, number in self._order(goals):
                over = goals.seconds and time.monotonic() - began > goals.seconds
                if over or (goals.counted and not goals.left(self.tally)):
                    break
                self.one(kind, number)
        except KeyboardInterrupt:
            sys.stderr.write("interrupted: what was done until now is reported\n")
        finally:
            self._ended.set()
            watch.join(10)
            self._look_at_memory()
            self._report()

    def _order(self, goals: Goals) -> Iterator[tuple[str, int]]:
        """Yield rounds: those that a goal lacks most of the time, all kinds in turns."""
        numbers = {kind: itertools.count() for kind in self._kinds}
        wanted = {"kills": KILLS, "flips": DAMAGE}
        while True:
            for kind in self._kinds:
                left = goals.left(self.tally)
                if goals.counted and kind in wanted.values() and kind not in _needed(left, wanted):
                    continue
                yield kind, next(numbers[kind])
            if goals.counted:
                # Requests have their goal: what is counted otherwise takes its turns alone.
                for kind in _needed(goals.left(self.tally), wanted) & self._kinds.keys():
                    for _ in range(8 if "sessions" in goals.left(self.tally) else 64):
                        if kind in _needed(goals.left(self.tally), wanted):
                            yield kind, next(numbers[kind])

    def one(self, kind: str, number: int) -> None:
        """Run one round in a directory of its own."""
        self._now = (f"{kind}:{number}", time.monotonic())
        directory = Path(tempfile.mkdtemp(prefix="omlx-chaos-", dir=self._base))
        world = World(
            kind,
            number,
            self.seed,
            self.tally,
            directory,
            sessions=self._sessions,
            grace=self._grace,
        )
        try:
            self._kinds[kind](world)
        except Exception as error:
            world.fail("stuck", f"the round raised {type(error).__name__}: {error}")
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        # What allocators keep for later, an arena for each thread that ever was, is no leak.
        gc.collect()
        release_freed_memory()
        self._memory.append(owned_bytes())

    def _watch(self, began: float) -> None:
        """Say how far it is, and end what hangs, with the stacks of all threads."""
        while not self._ended.wait(_PROGRESS_SECONDS):
            name, since = self._now
            tally = self.tally
            sys.stderr.write(
                f"{time.monotonic() - began:7.0f} s  {tally.sum('sessions'):,} sessions, "
                f"{tally.counted(KILLS):,} kills, {tally.counted('bit flips'):,} flips, "
                f"{tally.failed} failures; {resident_bytes() >> 20} MiB; {name}\n"
            )
            if time.monotonic() - since > ROUND_SECONDS:
                fault = name.rpartition(":")[0]
                repeat = f"python -m tests.chaos --seed {self.seed} --only '{name}'"
                tally.fail(fault, "stuck", "the round did not end", repeat)
                faulthandler.dump_traceback(all_threads=True)
                self._report()
                os._exit(1)
            self._report()

    def _look_at_memory(self) -> None:
        """The process at the end is no larger than when every kind had its turn, but for noise."""
        settled = 2 * len(self._kinds)
        if len(self._memory) < 3 * settled:
            return
        before = max(self._memory[settled // 2 : settled])
        after = sorted(self._memory[-settled:])[settled // 2]
        grown = after - before
        self.tally.add(memory_growth_bytes=max(0, grown))
        rounds_run = len(self._memory) - settled
        if grown > 32 * 2**20 and grown > 8192 * rounds_run:
            repeat = f"python -m tests.chaos --seed {self.seed}"
            self.tally.fail("memory", "left", f"{grown} bytes more after all rounds", repeat)


def _needed(left: dict[str, int], wanted: dict[str, str]) -> set[str]:
    return {kind for name, kind in wanted.items() if name in left}
