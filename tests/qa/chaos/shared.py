"""One directory, many processes that are killed: never over its budget, and what one flushed the
others find."""

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.driving import Child, disk_bytes, environment, until
from kit.storage import files_in
from omlx_cache_storage.format.names import parse_name

from .tally import Tally, Verdict

KILL, BETWEEN = "kill -9 of many", "kill -9 between two calls"
CLOCK, STOPPED, REMOVED = "clock set back", "stopped process", "directory removed"
TIGHT, ROOMY = (CLOCK, STOPPED, REMOVED), (STOPPED, CLOCK)
SILENCE_SECONDS, STOPPED_SECONDS = 60.0, 2.0
BLOCK, COUNT = 32, 3 * 32 + 9
KINDS = (("kv", "kv"), ("kv", "state"), ("kv", "window"), ("kv", "keep"))
TURN = 12
"""Rounds from one disturbance to the next; the last of them looks what resting stores count."""
EXCUSED = 3
"""For so many rounds after a disturbance a flush may fail."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, at least how many rounds, and in what directory. `roomy`: nothing may leave it;
    otherwise it has room for a part of what is asked for again and again. Every other process dies
    by itself, at one of 1 / `odds` calls that change the disk."""

    seconds: float
    seed: int
    roomy: bool = False
    turns: tuple[str, ...] = ()
    processes: int = 8
    odds: float = 0.0005
    flaw: str = ""
    rounds: int = 2

    @property
    def budget(self) -> int:
        return (2 << 30) if self.roomy else (2 << 20)


class Arena:
    """Runs a plan on the calling thread, in rounds: all processes have a request each at once."""

    def __init__(self, plan: Plan, directory: Path, tally: Tally) -> None:
        self._plan, self._home, self._directory = plan, directory, directory / "cold"
        self._tally, self._draw = tally, random.Random(plan.seed)
        self._children: list[Child] = []
        self._lives, self._turns = itertools.count(), itertools.cycle(plan.turns)
        self._asked: dict[Child, set[int]] = {}
        self._killed: set[Child] = set()
        self._durable: set[int] = set()
        self._disturbance = ""
        self._excused = 0
        self._temporary: set[Path] = set()

    def run(self) -> None:
        """Run to the end of the plan, look a last time, and leave no process behind."""
        self._directory.mkdir(mode=0o700, parents=True)
        end = time.monotonic() + self._plan.seconds
        try:
            for _ in range(self._plan.processes):
                self._children.append(self._start())
            for number in itertools.count():
                if number >= self._plan.rounds and time.monotonic() > end:
                    break
                self._round(number)
            self._audit()
            for child in self._children:
                self._killed.add(child)
                child.end()
            self._look()
        finally:
            for child in self._children:
                child.kill()

    def _fail(self, verdict: Verdict, what: str) -> None:
        repeat = f"python -m qa.chaos shared --seed {self._plan.seed}"
        self._tally.fail(self._disturbance or KILL, verdict, what, repeat)

    def _start(self) -> Child:
        life, plan = next(self._lives), self._plan
        given = {
            "cold_dir": str(self._directory),
            "cold_bytes": plan.budget,
            "hot_bytes": 0,
            "queue_bytes": "4MiB",
            "min_free_bytes": 0,
            "durability": "none",
            "socket": "off",
            "block_size": BLOCK,
        }
        odds = plan.odds if life % 2 else 0
        arguments = ["-m", "qa.chaos.worker", json.dumps(given), str(odds), f"{plan.seed} {life}"]
        env = environment(OMLX_CACHE_RUNTIME_DIR=str(self._home / "run"))
        log = self._home / f"{life}.log"
        child = Child([*arguments, plan.flaw], env=env, log=log, forked=True)
        self._asked[child] = set()
        return child if self._hear(child) else self._start()

    def _round(self, number: int) -> None:
        self._excused -= 1
        if self._plan.turns and number % TURN == TURN // 4:
            self._disturb(next(self._turns))
        seeds = [self._draw.randrange(max(0, 2 * number - 6), 2 * number + 2)
                 for _ in self._children]  # fmt: skip
        for seed, child in zip(seeds, self._children, strict=True):
            kinds = KINDS[seed % len(KINDS)]
            self._tell(child, {"do": "ask", "seed": seed, "count": COUNT, "kinds": kinds})
        if self._draw.random() < 0.3:
            self._kill(self._draw.choice(self._children))
        self._sample()
        if self._disturbance == STOPPED:
            self._stop_one()
        flushed = set()
        for place, (seed, child) in enumerate(zip(seeds, list(self._children), strict=True)):
            told = self._hear(child)
            if told is None:
                self._children[place] = self._start()
            elif self._judge(child, seed, told):
                flushed.add(seed)
            self._sample()
        self._durable |= flushed
        self._calm()
        if number % TURN == TURN - 1:
            self._audit()

    def _judge(self, child: Child, seed: int, told: dict[str, Any]) -> bool:
        """Judge an answer; True when its pages are durable."""
        if told["wrong"]:
            self._fail("wrong", f"seed {seed}: {told['wrong']}")
        if self._plan.roomy and seed in self._durable and told["cached"] < COUNT - 1:
            self._fail("lost", f"of seed {seed}, which was flushed, {told['cached']} tokens came")
        if not told["flushed"] and self._excused <= 0:
            self._fail("stuck", "a flush was False though no disk failed")
        # What it never computed itself, another one wrote.
        found = told["cached"] > 0 and seed not in self._asked[child]
        self._asked[child].add(seed)
        self._tally.add(read=told["cached"], found=found)
        return bool(told["flushed"])

    def _tell(self, child: Child, task: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):
            child.tell(task)

    def _hear(self, child: Child) -> dict[str, Any] | None:
        """Return what a process says; None for one that has ended, which it may have been told."""
        if not child.says_something(SILENCE_SECONDS):
            self._fail("stuck", f"a process said nothing for {SILENCE_SECONDS:.0f} s")
            child.kill()
            return None
        with contextlib.suppress(AssertionError):
            return dict(child.hear())
        code = child.end()
        died = code == -signal.SIGKILL and child not in self._killed
        self._tally.count(BETWEEN, died)
        if code != -signal.SIGKILL or (died and not self._plan.odds):
            self._fail("stuck", f"a process ended with {code}: {child.text()[-1500:]}")
        return None

    def _kill(self, child: Child) -> None:
        self._tally.count(KILL)
        self._killed.add(child)
        child.send(signal.SIGKILL)

    def _disturb(self, what: str) -> None:
        self._disturbance, self._excused = what, EXCUSED
        self._tally.count(what)
        if what == CLOCK:
            self._set_clock(-self._draw.choice((5, 3_600, 86_400)) * 10**9)
        elif what == REMOVED:
            self._durable.clear()
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory.mkdir(mode=0o700, exist_ok=True)

    def _calm(self) -> None:
        if self._disturbance == CLOCK:
            self._set_clock(0)
        self._disturbance = ""

    def _set_clock(self, offset_ns: int) -> None:
        self._ask_all({"do": "clock", "offset_ns": offset_ns})

    def _ask_all(self, task: dict[str, Any]) -> list[dict[str, Any]]:
        """Have all do something; one that has ended meanwhile is replaced."""
        for child in self._children:
            self._tell(child, task)
        answers = []
        for place, child in enumerate(self._children):
            if (told := self._hear(child)) is None:
                self._children[place] = self._start()
            else:
                answers.append(told)
        return answers

    def _stop_one(self) -> None:
        """Have one process stand still for a while, whatever it holds, while the others go on."""
        chosen = self._draw.choice(self._children)
        chosen.send(signal.SIGSTOP)
        time.sleep(STOPPED_SECONDS)
        chosen.send(signal.SIGCONT)

    @contextlib.contextmanager
    def _all_stopped(self) -> Iterator[None]:
        """Stop every thread of all processes for the time of the block."""
        pids = [child.process.pid for child in self._children]
        try:
            for pid in pids:
                _signal(pid, signal.SIGSTOP)
            assert until(lambda: all(map(_stands_still, pids)))
            yield
        finally:
            for pid in pids:
                _signal(pid, signal.SIGCONT)

    def _sample(self) -> None:
        with self._all_stopped():
            used = disk_bytes(self._directory)
        self._tally.add(exact_samples=1)
        if used > self._plan.budget:
            self._fail("over", f"{used - self._plan.budget} bytes over {self._plan.budget}")

    def _audit(self) -> None:
        """Compare what resting stores count with what is there."""
        before = self._look()
        told = self._ask_all({"do": "audit"})
        # Resting stores may still evict.
        used = min(before, disk_bytes(self._directory))
        for one in told:
            self._tally.add(audits=1)
            if one["nbytes"] < used or one["limit_bytes"] != self._plan.budget or one["broken"]:
                self._fail("left", f"a store counts {one}, and {used} bytes lie there")
            if one["corrupt"]:
                self._fail("wrong", f"a store found {one['corrupt']} pages damaged, by nobody")
            if one["state"] != "ok":
                self._fail("stuck", f"a store at rest is {one['state']!r}")

    def _look(self) -> int:
        """Look at the directory while nobody works; return its bytes. A temporary file of a writer
        that is dead is left when the next quiet moment meets it again."""
        now = set(files_in(self._directory, ".tmp-*"))
        if left := now & self._temporary:
            self._fail("left", f"temporary files that two quiet moments have met: {left}")
        self._temporary = now
        names = [(path.parents[1], parse_name(path.name)) for path in files_in(self._directory)]
        pages = Counter((place, name.id) for place, name in names if name is not None)
        if doubled := [page for page, count in pages.items() if count > 1]:
            self._fail("left", f"two files of each of {doubled}")
        return disk_bytes(self._directory)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _stands_still(pid: int) -> bool:
    """True when no thread of a process runs, or none is left."""
    try:
        tasks = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return all(task.rpartition(")")[2].split()[0] in "TtZX" for task in tasks)


def run_shared(seconds: float, seed: int, tally: Tally, directory: Path) -> None:
    """Run a directory that is too small, and for a quarter of the time one with room for all."""
    if sys.platform != "linux":
        tally.skip(KILL, "processes are stopped as a whole, and seen to stand, on Linux")
        return
    Arena(Plan(seconds * 0.75, seed, turns=TIGHT), directory / "tight", tally).run()
    Arena(Plan(seconds / 4, seed, True, ROOMY), directory / "roomy", tally).run()
