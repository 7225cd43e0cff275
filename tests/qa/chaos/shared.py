"""One directory, many processes that are killed: never over its budget, and what one flushed the
others find."""

import contextlib
import itertools
import random
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .directory import Sampler, nbytes, walk
from .processes import Process, Processes
from .tally import Tally, Verdict
from .worker import BEGINNING, CHAINS, LENGTH, PAYLOAD_BYTES

KILL, BETWEEN = "kill -9 of many", "kill -9 between two calls"
CLOCK, STOPPED, REMOVED = "clock set back", "stopped process", "directory removed"
SILENCE_SECONDS = QUIET_SECONDS = 60.0
STRETCH = 30
ROOM_BYTES = 2 << 30
# Headers and blocks included, what the files of all chains take.
WORKING_SET_BYTES = (BEGINNING + CHAINS * (LENGTH - BEGINNING)) * sum(
    -(-(16 * 1024 + payload) // 4096) * 4096 for payload in PAYLOAD_BYTES
)
DISTURBED_SECONDS = 2.0
EXCUSED_SECONDS = 6.0
"""For so long after a disturbance a flush may fail: what waits for a lock waits for less."""
BUSY = 3
"""A process with so many commands to answer is not asked to look something up as well."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, how often, and in what directory. `roomy`: nothing may leave it, and chains are new
    ones; otherwise it has room for a fifth of what is asked for again and again. Half of the
    writers and a quarter of the readers die by themselves, at one of 1 / `odds` calls that change
    the disk. With `least` a slow machine takes up to `STRETCH` times as long, until so much is
    counted."""

    seconds: float
    seed: int
    roomy: bool = False
    turns: tuple[str, ...] = ()
    kill_every: float = 1.0
    disturb_every: float = 12.0
    audit_every: float = 30.0
    writers: int = 4
    readers: int = 4
    odds: float = 0.0005
    worker: str = "qa.chaos.worker"
    least: Mapping[str, int] = field(default_factory=dict)

    @property
    def roles(self) -> list[str]:
        writers, readers = (self.writers // 2, self.readers // 4) if self.odds else (0, 0)
        return [
            *["writer"] * (self.writers - writers),
            *["deadly writer"] * writers,
            *["reader"] * (self.readers - readers),
            *["deadly reader"] * readers,
        ]

    @property
    def budget(self) -> int:
        return ROOM_BYTES if self.roomy else WORKING_SET_BYTES // 5


class Arena:
    """Runs a plan on the calling thread; what goes wrong is in the tally, by what was going on."""

    def __init__(self, plan: Plan, directory: Path, tally: Tally) -> None:
        self._plan, self._directory, self._tally = plan, directory, tally
        self._draw = random.Random(plan.seed)
        self._processes = Processes(plan.worker, self._job)
        self._sampler = Sampler(directory, plan.budget, self._processes, self._fail)
        self._lives, self._turns = itertools.count(), itertools.cycle(plan.turns)
        self._disturbed = ""
        self._offset_ns = 0
        self._removed = float("-inf")
        self._excused_until = 0.0
        self._answers: dict[str, dict[int, dict[str, Any]]] = {}

    def _fail(self, verdict: Verdict, what: str) -> None:
        repeat = f"python -m qa.chaos shared --seed {self._plan.seed}"
        behind = f"{time.monotonic() - self._removed:.1f} s behind the last {REMOVED}"
        self._tally.fail(self._disturbed or KILL, verdict, f"{what} ({behind})", repeat)

    def _job(self, role: str) -> dict[str, Any]:
        plan = self._plan
        return {
            "role": role,
            "directory": str(self._directory),
            "budget": plan.budget,
            "roomy": plan.roomy,
            "seed": f"{plan.seed} {role} {next(self._lives)}",
            "offset_ns": self._offset_ns,
            "odds": plan.odds if role.startswith("deadly") else 0,
        }

    def run(self) -> None:
        """Run to the end of the plan, look a last time, and leave no process behind."""
        self._directory.mkdir(mode=0o700)
        try:
            for role in self._plan.roles:
                self._processes.start(role)
            self._work()
            self._quiet()
            self._close_all()
            # One more store is opened and closed: nothing temporary is left.
            self._processes.start("reader")
            if self._wait(lambda: all(process.ready for process in self._processes.all)):
                self._close_all()
            for _ in range(2):
                self._sampler.rest()
            self._tally.add(exact_samples=self._sampler.exact_samples)
        finally:
            self._processes.close()

    def _work(self) -> None:
        plan, now = self._plan, time.monotonic()
        end = now + plan.seconds
        kill, audit, calm = now + plan.kill_every, now + plan.audit_every, 0.0
        disturb = now + plan.disturb_every / 2 if plan.turns else float("inf")
        last = end + (STRETCH - 1) * plan.seconds
        while (now := time.monotonic()) < end or (now < last and self._lacks):
            self._listen(0.005)
            self._sampler.sample()
            if now >= kill:
                kill = now + plan.kill_every * self._draw.uniform(0.5, 1.5)
                self._kill(self._draw.choice(self._processes.all))
            if self._disturbed and now >= calm:
                self._calm()
            elif not self._disturbed and now >= disturb:
                self._disturb(next(self._turns))
                calm, disturb = now + DISTURBED_SECONDS, now + plan.disturb_every
            elif not self._disturbed and now >= audit:
                audit = now + plan.audit_every
                self._quiet()
        self._calm()

    @property
    def _lacks(self) -> bool:
        """True as long as something of the plan is to come."""
        least = {**dict.fromkeys(self._plan.turns, 1), **self._plan.least}
        counted = {"exact": self._sampler.exact_samples, "failures": len(self._tally.failures)}
        return bool(self._plan.least) and any(
            counted.get(what, 0) + self._tally.counted(what) + self._tally.sum(what) < count
            for what, count in least.items()
        )

    def _disturb(self, what: str) -> None:
        self._disturbed = what
        self._tally.count(what)
        if what == CLOCK:
            self._set_clock(-self._draw.choice((5, 3_600, 86_400)) * 10**9)
            return
        self._excused_until = time.monotonic() + DISTURBED_SECONDS + EXCUSED_SECONDS
        if what == STOPPED:
            self._processes.hold(self._draw.choice(self._processes.all))
            return
        self._removed = time.monotonic()
        for _ in range(50):
            # A directory that somebody writes into at this moment does not go at once.
            shutil.rmtree(self._directory, ignore_errors=True)
            if not self._directory.exists():
                break
        with contextlib.suppress(FileExistsError):
            self._directory.mkdir(mode=0o700)

    def _calm(self) -> None:
        if self._offset_ns:
            self._set_clock(0)
        self._processes.let_go()
        self._disturbed = ""

    def _set_clock(self, offset_ns: int) -> None:
        self._offset_ns = offset_ns
        for process in self._processes.all:
            process.tell("clock", offset_ns=offset_ns)

    def _kill(self, process: Process) -> None:
        """Kill one, and start another in its place."""
        self._processes.kill(process)
        self._tally.count(KILL)
        while not process.ended:
            # What it had said before counts.
            self._listen(1.0)
        self._start_again(process)

    def _start_again(self, process: Process) -> None:
        if process in self._processes.all:
            self._leave(process)
            self._processes.start(process.role)

    def _leave(self, process: Process) -> None:
        said = self._processes.remove(process)
        if said:
            self._fail("stuck", f"a {process.role} ended by itself, or with errors: {said}")

    def _listen(self, seconds: float) -> None:
        """Hear what there is to hear; who ended or is silent for long is replaced."""
        for process, told in self._processes.listen(seconds):
            self._hear(process, told.pop("did"), told)
        now = time.monotonic()
        for process in list(self._processes.all):
            if now - process.heard > SILENCE_SECONDS and process.pid not in self._processes.held:
                self._fail("stuck", f"a {process.role} said nothing for {SILENCE_SECONDS:.0f} s")
                process.heard = now
                self._kill(process)
            elif process.ended and not process.expected_to_end:
                self._tally.count(BETWEEN, process.role.startswith("deadly"))
                self._start_again(process)

    def _hear(self, process: Process, did: str, told: dict[str, Any]) -> None:
        self._answers.setdefault(did, {})[process.pid] = told
        for page in told.get("wrong", ()):
            self._fail("wrong", f"a {process.role} read {page}")
        self._tally.add(
            **{name: told[name] for name in ("stored", "read", "found") if name in told}
        )
        if not told.get("clean", True):
            self._fail("stuck", f"a {process.role} was not closed in time")
        if did == "look":
            self._tally.add(gone=len(told["gone"]))
            if told["missing"]:
                self._fail("lost", f"a {process.role} missed pages {told['missing']} that another "
                           "had flushed, and that lay there before and after")  # fmt: skip
            if self._plan.roomy and told["gone"]:
                self._fail("lost", f"flushed pages have no file: {told['gone']}")
        elif did == "step" and "flushed" in told:
            if told["flushed"]:
                self._pass_on(process, told)
            elif self._plan.roomy and not self._excused and not told["dropped"]:
                self._fail("stuck", "flush was False, where all is well and there is room")

    def _pass_on(self, process: Process, told: dict[str, Any]) -> None:
        """Have all others look up what one flushed."""
        if self._plan.roomy and told["lacking"]:
            self._fail("lost", f"flush was True, and the tier lacks pages {told['lacking']}")
        for other in self._processes.all if told["durable"] else ():
            listens = other.ready and other.pid not in self._processes.held
            if other is not process and listens and other.unanswered < BUSY:
                other.tell("look", chain=told["chain"], pages=told["durable"])

    @property
    def _excused(self) -> bool:
        return time.monotonic() < self._excused_until

    def _quiet(self) -> None:
        """Let all rest, and compare what they say with what is there."""
        if not any(self._ask("rest") for _ in range(10)):
            return
        rested = self._answers["rest"]
        before = self._sampler.rest()
        if self._ask("audit"):
            # Resting stores may still evict.
            used = min(before, nbytes(walk(self._directory)))
            for told in self._answers["audit"].values():
                self._tally.add(audits=1)
                self._sampler.compare("a store", told, used)
        for told in rested.values():
            if not told["flushed"] and not told["dropped"] and not self._excused:
                self._fail("stuck", "a flush was False at rest")
        for process in self._processes.all:
            process.tell("go")

    def _ask(self, what: str) -> bool:
        """Tell all to do something, and wait until they say that they did; False where one has
        ended meanwhile: who has taken its place was not told."""
        self._answers[what] = {}
        asked = list(self._processes.all)
        for process in asked:
            process.tell(what)
        done = self._wait(
            lambda: all(process.pid in self._answers[what] or process.ended for process in asked)
        )
        return done and asked == self._processes.all and not any(one.ended for one in asked)

    def _wait(self, done: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + QUIET_SECONDS
        while not done():
            if time.monotonic() > deadline:
                self._fail("stuck", f"not all did what they were told in {QUIET_SECONDS:.0f} s")
                return False
            self._listen(0.05)
        return True

    def _close_all(self) -> None:
        for process in self._processes.all:
            process.expected_to_end = True
            process.tell("end")
        self._wait(lambda: all(process.ended for process in self._processes.all))
        for process in list(self._processes.all):
            if not process.ended:
                self._processes.kill(process)
            self._leave(process)


TIGHT, ROOMY = (CLOCK, STOPPED, REMOVED), (STOPPED, CLOCK)


def run_shared(seconds: float, seed: int, tally: Tally, directory: Path) -> None:
    """Run a directory that is too small, and for a quarter of the time one with room for all."""
    if sys.platform != "linux":
        tally.skip(KILL, "processes are stopped as a whole, and seen to stand, on Linux")
        return
    often = min(12.0, max(3.0, seconds / 16))
    plan = Plan(seconds * 0.75, seed, turns=TIGHT, disturb_every=often, audit_every=2 * often)
    Arena(plan, directory / "tight", tally).run()
    roomy = Plan(seconds / 4, seed, True, ROOMY, disturb_every=often, audit_every=2 * often)
    Arena(roomy, directory / "roomy", tally).run()
