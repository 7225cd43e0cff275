"""The processes on the shared directory: started, told, heard, stopped, continued and killed."""

import contextlib
import json
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from kit import forks

STOP_SECONDS = 10.0
END_SECONDS = 60.0


class Process:
    """One process: its role, its life's number, and what it was told and has said."""

    def __init__(self, module: str, job: dict[str, Any], started: float) -> None:
        self.role: str = job["role"]
        self.heard = started
        self.ready = self.ended = False
        self.unanswered = 0
        self.expected_to_end = False
        self._may_die = bool(job["odds"])
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (`close` closes it)
        stdin, self._commands = os.pipe()
        environment = {k: v for k, v in os.environ.items() if not k.startswith("OMLX_")}
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        try:
            self._forked = forks.fork(
                [module, json.dumps(job)], environment, self._errors.fileno(), stdin
            )
        finally:
            os.close(stdin)
        self.pid = self._forked.pid
        self.stdout = self._forked.stdout.fileno()
        self._said = b""

    def tell(self, what: str, **words: Any) -> None:
        """Send a command; nothing happens when nobody is there any more."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._commands, (json.dumps({"do": what, **words}) + "\n").encode())
            self.unanswered += 1

    def hear(self) -> Iterator[dict[str, Any]]:
        """Yield what was said since; waits for at least a part of it, or the end."""
        more = os.read(self.stdout, 1 << 20)
        self.ended = not more
        self.heard = time.monotonic()
        *lines, self._said = (self._said + more).split(b"\n")
        for line in lines:
            told = json.loads(line)
            self.ready = True
            self.unanswered -= told["did"] not in ("ready", "step", "closed")
            yield told

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def close(self) -> str:
        """Wait until it is gone; return "", or how it ended when that was not asked for, with the
        errors that it told of."""
        code = self._forked.wait(END_SECONDS)
        self._forked.stdout.close()
        os.close(self._commands)
        with self._errors as errors:
            errors.seek(0)
            said = errors.read()[-1500:]
        killed = code == -signal.SIGKILL and (self.expected_to_end or self._may_die)
        ended = killed or (code == 0 and self.expected_to_end)
        return "" if ended and not said else f"{code}: {said}"


class Processes:
    """All of them; one thread uses it. `jobs` makes a role's next job."""

    def __init__(self, module: str, job: Callable[[str], dict[str, Any]]) -> None:
        self._module, self._job = module, job
        self.all: list[Process] = []
        self.held: set[int] = set()

    def start(self, role: str) -> Process:
        process = Process(self._module, self._job(role), time.monotonic())
        self.all.append(process)
        return process

    def listen(self, seconds: float) -> Iterator[tuple[Process, dict[str, Any]]]:
        """Yield what processes say within so many seconds, or at once."""
        by_stdout = {process.stdout: process for process in self.all if not process.ended}
        for descriptor in select.select(list(by_stdout), [], [], seconds)[0]:
            process = by_stdout[descriptor]
            for told in process.hear():
                yield process, told

    def kill(self, process: Process) -> None:
        process.expected_to_end = True
        process.signal(signal.SIGKILL)
        self.held.discard(process.pid)

    def remove(self, process: Process) -> str:
        """Take leave of one that has ended."""
        self.all.remove(process)
        self.held.discard(process.pid)
        return process.close()

    def hold(self, process: Process) -> None:
        """Stop one; it stays so while others are frozen and thawed."""
        self.held.add(process.pid)
        process.signal(signal.SIGSTOP)

    def let_go(self) -> None:
        """Continue whoever is stopped."""
        for process in self.all:
            if process.pid in self.held:
                process.signal(signal.SIGCONT)
        self.held.clear()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[bool]:
        """Stop every thread of all of them for the time of the block; False when they do not
        stop in time."""
        try:
            for process in self.all:
                process.signal(signal.SIGSTOP)
            yield self._all_stand_still()
        finally:
            for process in self.all:
                if process.pid not in self.held:
                    process.signal(signal.SIGCONT)

    def _all_stand_still(self) -> bool:
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline:
            # Twice: a thread may have been begun behind the first look by one that ran.
            if all(stands_still(process.pid) for process in (*self.all, *self.all)):
                return True
        return False

    def close(self) -> None:
        """Kill whoever is left."""
        for process in list(self.all):
            self.kill(process)
            self.remove(process)


def stands_still(pid: int) -> bool:
    """True when no thread of a process runs, or none is left."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except FileNotFoundError:
        return True
    return all(_state(pid, task) in "TtZX" for task in tasks)


def _state(pid: int, task: str) -> str:
    try:
        with open(f"/proc/{pid}/task/{task}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"
