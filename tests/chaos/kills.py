"""kill -9 at random instants of real processes that share a directory, one after the other."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from typing import IO, Any

from kit import forks
from kit.storage import files_in

from .subjects import MIXTURES
from .world import World, roomy_options, small_options

LIVES = 10
SESSIONS = 60
SILENCE_SECONDS = 60.0


def run_kills(world: World) -> None:
    """Start a process, kill it, and let the next one check what the last was promised.

    In a roomy directory everything promised must be there; in a tight one, where a budget sends
    pages away, what was promised last, if no request began since.
    """
    draw = world.draw
    tight = draw.random() < 0.4
    options = small_options(draw) if tight else roomy_options(draw)
    options |= {"hot_cache_only": False, "write_policy": draw.choice(["through", "lazy"])}
    job: dict[str, Any] = {
        "number": world.number,
        "seed": world.seed,
        "directory": str(world.directory),
        "sessions": SESSIONS,
        "grace": world.grace,
        "options": options,
        "mixture": draw.choice(list(MIXTURES)),
        "tight": tight,
        "promised": [],
    }
    world.options = {**options, "mixture": job["mixture"]}
    for life in range(LIVES + 1):
        # The last one is not killed: it checks, works, and closes in peace.
        killed_after = draw.randrange(SESSIONS // 2) if life < LIVES else None
        job |= {"life": life}
        heard = _Life(world, job, killed_after, draw.random() * 0.03).run()
        if heard is None:
            return
        job["promised"] = heard if tight else _newest(job["promised"] + heard)
    temporary = files_in(world.cold_dir, ".tmp-*")
    if temporary:
        world.fail("left", f"{len(temporary)} temporary files")


def _newest(promised: list[list[Any]]) -> list[list[Any]]:
    """Return the last promise for each sequence, of the last 40 sequences."""
    known = {(tuple(tokens), salt): count for tokens, salt, count in promised}
    return [[list(tokens), salt, count] for (tokens, salt), count in known.items()][-40:]


class _Life:
    """One process, from its start to its end."""

    def __init__(
        self, world: World, job: dict[str, Any], killed_after: int | None, delay: float
    ) -> None:
        self._world = world
        self._killed_after = killed_after
        self._delay = delay
        self._began = 0
        self._promised: list[list[Any]] = []
        self._ended = False
        self._tight = bool(job["tight"])
        self._job = world.directory / "job.json"
        self._job.write_text(json.dumps(job))
        self._process: Any = None

    def run(self) -> list[list[Any]] | None:
        """Return what was promised and must be kept; None when the process failed by itself."""
        with tempfile.TemporaryFile("w+") as errors:
            self._process = _start(["chaos.victim", str(self._job)], errors)
            code = self._follow()
            if code in (0, -signal.SIGKILL):
                return self._promised
            errors.seek(0)
            self._world.fail("stuck", f"a process ended with {code}: {errors.read()[-800:]}")
            return None

    def _follow(self) -> int:
        """Listen to the process until it ends, and kill it on the way."""
        killed = self._killed_after == 0
        if killed:
            # While it opens what the one before has left.
            time.sleep(self._delay * 10)
            self._kill()
        stdout = self._process.stdout
        with stdout:
            while True:
                if not select.select([stdout], [], [], SILENCE_SECONDS)[0]:
                    self._world.fail("stuck", "a process said nothing for a minute")
                    self._process.kill()
                line = _line(stdout)
                if not line:
                    break
                self._hear(json.loads(line))
                due = self._killed_after is not None and self._began >= self._killed_after
                if due and not killed:
                    time.sleep(self._delay)
                    self._kill()
                    killed = True
        code: int = self._process.wait(30)
        return code

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)
            self._world.count()

    def _hear(self, words: dict[str, Any]) -> None:
        if "began" in words:
            self._began += 1
            self._world.tally.add(sessions=1)
            if self._tight:
                self._promised = []
        if "promised" in words:
            self._promised += words["promised"]
        for name in ("checked", "ended"):
            if name in words:
                self._world.tally.merge(words[name])


def _line(stdout: IO[str]) -> str:
    """Return a whole line, "" at the end: one that was cut off by a kill is none."""
    line = stdout.readline()
    return line if line.endswith("\n") else ""


def _start(command: list[str], errors: IO[str]) -> Any:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OMLX_")}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    if forks.CAN_FORK:
        return forks.fork(command, environment, errors.fileno())
    return subprocess.Popen(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        stderr=errors,
        env=environment,
        text=True,
    )
