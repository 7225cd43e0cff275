"""What the processes say: counted, checked, and passed on to the others to be looked up."""

import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from ..tally import Verdict
from .disturbances import Disturbance
from .processes import Process, Processes

BUSY = 3
"""A process with so many commands to answer is not asked to look something up as well."""
EXCUSED_SECONDS = 6.0
"""For so long after a disturbance a flush may fail: what waits for a lock waits for less."""


class Listener:
    """Hears what each process did. `fail` is told what is wrong; `sums` is counted in."""

    def __init__(
        self,
        processes: Processes,
        roomy: bool,
        draw: random.Random,
        sums: Counter[str],
        fail: Callable[[Verdict, str], None],
    ) -> None:
        self._processes, self._roomy, self._draw = processes, roomy, draw
        self._sums, self._fail = sums, fail
        self._answers: dict[str, dict[int, dict[str, Any]]] = {}
        self._asked: list[Process] = []
        self._excused_until = 0.0

    def excuse(self, disturbance: Disturbance) -> None:
        if disturbance.excuses:
            self._excused_until = time.monotonic() + disturbance.seconds + EXCUSED_SECONDS

    @property
    def _excused(self) -> bool:
        return time.monotonic() < self._excused_until

    def hear(self, process: Process, told: dict[str, Any]) -> None:
        did = told.pop("did")
        self._answers.setdefault(did, {})[process.pid] = told
        for page in told.get("wrong", ()):
            self._fail("wrong", f"a {process.role} read {page}")
        if "corrupt" in told.get("unread", {}):
            self._fail("wrong", f"a {process.role} read a damaged page; nobody damaged any")
        for name in ("stored", "asked", "read", "looked up"):
            self._sums[name] += told.get(name, 0)
        if did == "closed" and not told["clean"]:
            self._fail("stuck", f"a {process.role} was not closed in time")
        if did == "look":
            self._looked(process, told)
        elif "flushed" in told and did == "step":
            self._flushed(process, told)

    def _flushed(self, process: Process, told: dict[str, Any]) -> None:
        self._sums["flushes"] += 1
        if not told["flushed"]:
            self._sums["failed flushes"] += 1
            if self._roomy and not self._excused and not told["dropped"]:
                self._fail("stuck", "flush was False, where all is well and there is room")
            return
        if self._roomy and told["lacking"]:
            self._fail("lost", f"flush was True, and the tier lacks pages {told['lacking']}")
        if told["durable"]:
            for other in self._processes.all:
                if other is process or not other.ready or other.unanswered >= BUSY:
                    continue
                if other.pid not in self._processes.held:
                    other.tell("look", chain=told["chain"], pages=told["durable"])

    def _looked(self, process: Process, told: dict[str, Any]) -> None:
        self._sums["looks"] += 1
        self._sums["found"] += told["found"]
        self._sums["evicted"] += len(told["gone"])
        self._sums["stored twice"] += len(told["replaced"]) if self._roomy else 0
        if told["missing"]:
            self._fail(
                "lost",
                f"a {process.role} did not find pages {told['missing']} that another had flushed, "
                f"and that lay there before and after; it found {told['found']}",
            )
        if self._roomy and told["gone"]:
            self._fail("lost", f"flushed pages have no file: {told['gone']}")

    def forget(self, what: str) -> None:
        """Forget the answers to a command that is about to be given to all."""
        self._answers[what] = {}
        self._asked = list(self._processes.all)

    def all_answered(self, what: str) -> bool:
        answers = self._answers[what]
        return all(process.pid in answers or process.ended for process in self._asked)

    def asked_all(self) -> bool:
        """True when those that were told are all that there are."""
        return self._asked == self._processes.all and not any(p.ended for p in self._asked)

    def answers(self, what: str) -> list[tuple[Process, dict[str, Any]]]:
        answers = self._answers[what]
        return [
            (process, answers[process.pid]) for process in self._asked if process.pid in answers
        ]

    def check_rested(self) -> None:
        """At rest, with all faults over, every flush succeeds."""
        for process, told in self.answers("rest"):
            if not told["flushed"] and not told["dropped"] and not self._excused:
                self._fail("stuck", f"a {process.role}'s flush was False at rest")
