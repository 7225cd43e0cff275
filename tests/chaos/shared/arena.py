"""A directory, the processes on it, and the one loop that kills, disturbs, listens and samples."""

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..tally import Tally, Verdict
from .audit import Auditor
from .chains import working_set_bytes
from .disturbances import Disturbance, Turns
from .listening import Listener
from .measuring import nbytes, walk
from .processes import Process, Processes
from .sampling import Sampler

WORKER = "chaos.shared.worker"
KILL = "kill -9"
BETWEEN = "kill -9 between two calls"
SILENCE_SECONDS = 60.0
QUIET_SECONDS = 60.0
QUIET_TRIES = 10
STRETCH = 30
ROOM_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, how often, and in what directory. `roomy`: nothing may leave it, and chains are new
    ones; otherwise it has room for a fifth of what is asked for again and again. One writer of two
    and one reader of four die by themselves, before or behind one of 1 / `odds` calls that change
    the disk. With `least` a slow machine takes more than these seconds, up to `STRETCH` times as
    many, until so much is counted and each of `turns` has been taken."""

    seconds: float
    seed: int
    roomy: bool = False
    turns: Turns = ()
    kill_every: float = 1.0
    disturb_every: float = 12.0
    audit_every: float = 30.0
    writers: int = 4
    readers: int = 4
    odds: float = 0.0005
    worker: str = WORKER
    repeat: str = "python -m tests.chaos shared"
    least: Mapping[str, int] = field(default_factory=dict)

    @property
    def roles(self) -> dict[str, int]:
        writers, readers = (self.writers // 2, self.readers // 4) if self.odds else (0, 0)
        return {
            "writer": self.writers - writers,
            "deadly writer": writers,
            "reader": self.readers - readers,
            "deadly reader": readers,
        }

    @property
    def budget(self) -> int:
        return ROOM_BYTES if self.roomy else working_set_bytes() // 5


class Arena:
    """Runs a plan on the calling thread; what goes wrong is in the tally, by what was going on."""

    def __init__(self, plan: Plan, directory: Path, tally: Tally) -> None:
        self.plan, self.directory, self.tally = plan, directory, tally
        self.draw = random.Random(plan.seed)
        self.processes = Processes(plan.worker, self._job)
        self.sums: Counter[str] = Counter()
        self.sampler = Sampler(
            directory, plan.budget, self.processes, lambda what: self.fail("over", what)
        )
        self._auditor = Auditor(directory, plan.budget, self.fail)
        self._listener = Listener(self.processes, plan.roomy, self.draw, self.sums, self.fail)
        self._began = time.monotonic()
        self._last = "nothing else"
        self._offset_ns = 0
        self._lives = itertools.count()
        self._turns = itertools.cycle(plan.turns)
        self._disturbed: Disturbance | None = None

    def fail(self, verdict: Verdict, what: str) -> None:
        going_on = KILL if self._disturbed is None else self._disturbed.name
        seconds = time.monotonic() - self._began
        words = f"{what}; {seconds:.1f} s after the start, behind {self._last}"
        self.tally.fail(going_on, verdict, words, self.plan.repeat)

    def _job(self, role: str) -> dict[str, Any]:
        return {
            "role": role,
            "directory": str(self.directory),
            "budget": self.plan.budget,
            "fresh": self.plan.roomy,
            "seed": f"{self.plan.seed} {role} {next(self._lives)}",
            "offset_ns": self._offset_ns,
            "odds": self.plan.odds if role.startswith("deadly") else 0,
        }

    def set_clock(self, offset_ns: int) -> None:
        self._offset_ns = offset_ns
        for process in self.processes.all:
            process.tell("clock", offset_ns=offset_ns)

    def run(self) -> None:
        """Run to the end of the plan, look a last time, and leave no process behind."""
        plan = self.plan
        try:
            for role, count in plan.roles.items():
                for _ in range(count):
                    self.processes.start(role)
            self._work()
            self._quiet()
            self._end()
        finally:
            if self._disturbed is not None:
                self._disturbed.end()
            self.processes.close()

    def _work(self) -> None:
        plan, now = self.plan, time.monotonic()
        end = now + plan.seconds
        due = {"kill": now + plan.kill_every, "audit": now + plan.audit_every}
        due["disturb"] = now + plan.disturb_every / 2 if plan.turns else float("inf")
        undisturbed = float("inf")
        last = end + (STRETCH - 1) * plan.seconds
        while (now := time.monotonic()) < end or (now < last and self._lacks):
            self._listen(0.005)
            self.sampler.sample()
            if now >= due["kill"]:
                due["kill"] = now + plan.kill_every * self.draw.uniform(0.5, 1.5)
                self._kill(self.draw.choice(self.processes.all))
            if self._disturbed is None and now >= due["disturb"]:
                undisturbed = now + self._disturb()
                due["disturb"] = now + plan.disturb_every
            elif self._disturbed is not None and now >= undisturbed:
                self._calm()
            elif self._disturbed is not None:
                self._disturbed.go_on()
            elif self._disturbed is None and now >= due["audit"]:
                due["audit"] = now + plan.audit_every
                self._quiet()
        if self._disturbed is not None:
            self._calm()

    @property
    def _lacks(self) -> bool:
        """True as long as something of the plan is to come."""
        if not self.plan.least:
            return False
        counted = {turn.name: self.tally.counted(turn.name) for turn in self.plan.turns}
        counted |= {**self.sums, **self.sampler.counts, KILL: self.tally.counted(KILL)}
        counted["failures"] = self.tally.failed
        least = {**dict.fromkeys((turn.name for turn in self.plan.turns), 1), **self.plan.least}
        return any(counted.get(what, 0) < count for what, count in least.items())

    def _disturb(self) -> float:
        self._disturbed = next(self._turns)(self)
        self._disturbed.begin()
        self.tally.count(self._disturbed.name)
        self._listener.excuse(self._disturbed)
        return min(self._disturbed.seconds, self.plan.disturb_every)

    def _calm(self) -> None:
        self._disturbed.end()
        self._listener.excuse(self._disturbed)
        self._last = f"{self._disturbed.name} that ended at {time.monotonic() - self._began:.1f} s"
        self._disturbed = None

    def _kill(self, process: Process) -> None:
        """Kill one, and start another in its place."""
        self.processes.kill(process)
        self.tally.count(KILL)
        while not process.ended:
            # What it had said before counts.
            self._listen(1.0)
        self._start_again(process)

    def _start_again(self, process: Process) -> None:
        if process in self.processes.all:
            self._leave(process)
            self.processes.start(process.role)

    def _leave(self, process: Process) -> None:
        said = self.processes.remove(process)
        if said:
            self.fail("stuck", f"a {process.role} ended by itself, or with errors: {said}")

    def _listen(self, seconds: float) -> None:
        """Hear what there is to hear; who ended or is silent for long is replaced."""
        for process, told in self.processes.listen(seconds):
            self._listener.hear(process, told)
        now = time.monotonic()
        for process in list(self.processes.all):
            if now - process.heard > SILENCE_SECONDS and process.pid not in self.processes.held:
                self.fail("stuck", f"a {process.role} said nothing for {SILENCE_SECONDS:.0f} s")
                process.heard = now
                self._kill(process)
            elif process.ended and not process.expected_to_end:
                self.tally.count(BETWEEN, process.role.startswith("deadly"))
                self._start_again(process)

    def _quiet(self) -> None:
        """Let all rest, and compare what they say with what is there."""
        if not any(self._ask("rest") for _ in range(QUIET_TRIES)):
            return
        before = self._auditor.measure()
        if self._ask("audit"):
            # Resting stores may still evict.
            used = min(before, nbytes(walk(self.directory)))
            for process, told in self._listener.answers("audit"):
                self.tally.add(audits=1)
                self._auditor.compare(f"a {process.role}", told, used)
        self._listener.check_rested()
        for process in self.processes.all:
            process.tell("go")

    def _ask(self, what: str) -> bool:
        """Tell all to do something, and wait until they say that they did."""
        self._listener.forget(what)
        for process in self.processes.all:
            process.tell(what)
        answered = self._wait(lambda: self._listener.all_answered(what), what)
        # Who has taken somebody's place meanwhile was not told.
        return answered and self._listener.asked_all()

    def _wait(self, done: Callable[[], bool], what: str) -> bool:
        deadline = time.monotonic() + QUIET_SECONDS
        while not done():
            if time.monotonic() > deadline:
                self.fail("stuck", f"not all did {what!r} within {QUIET_SECONDS:.0f} s")
                return False
            self._listen(0.05)
        return True

    def _end(self) -> None:
        """Close every store, then open and close one more: nothing temporary is left."""
        self._close_all()
        self.processes.start("reader")
        if self._wait(lambda: all(process.ready for process in self.processes.all), "open"):
            self._close_all()
        self._auditor.at_the_end()
        self.tally.add(**{"exact samples": self.sampler.counts["exact"], **self.sums})

    def _close_all(self) -> None:
        for process in self.processes.all:
            process.expected_to_end = True
            process.tell("end")
        self._wait(lambda: all(process.ended for process in self.processes.all), "end")
        for process in list(self.processes.all):
            if not process.ended:
                self.processes.kill(process)
            self._leave(process)
