"""A process on the shared directory: `python -m chaos.shared.worker JOB`, JOB being JSON.

Works until its standard input ends or says so. A line of JSON there is a command, one on standard
output says what was done: `{"did": ...}`, and whatever belongs to it.
"""

import contextlib
import json
import logging
import os
import random
import select
import sys
from pathlib import Path
from typing import Any

from kit.storage import open_store
from omlx_cache import BlockStore

from ..shifted import ShiftedClock
from . import work
from .deadly import Deadly

KIB = 1024
CLOSE_SECONDS = 30.0


def say(did: str, **words: Any) -> None:
    whole = (json.dumps({"did": did, **words}) + "\n").encode()
    while whole:
        whole = whole[os.write(1, whole) :]


class Commands:
    """Lines of standard input."""

    def __init__(self) -> None:
        self._read = b""

    def next(self, *, wait: bool) -> dict[str, Any] | None:
        """Return the next command; None when there is none yet, or `{"do": "end"}` at the end."""
        while b"\n" not in self._read:
            if not select.select([0], [], [], None if wait else 0)[0]:
                return None
            more = os.read(0, 65536)
            if not more:
                return {"do": "end"}
            self._read += more
        line, self._read = self._read.split(b"\n", 1)
        command: dict[str, Any] = json.loads(line)
        return command


class Worker:
    """Works, and does as it is told between two steps."""

    def __init__(
        self, job: dict[str, Any], store: BlockStore, clock: ShiftedClock, deadly: Deadly | None
    ) -> None:
        self._store, self._clock, self._deadly = store, clock, deadly
        self._directory = Path(job["directory"])
        self._odds = job["odds"]
        draw = random.Random(job["seed"])
        self._work: work.Work = (
            work.Writer(store, self._directory, draw, job["fresh"])
            if job["role"].endswith("writer")
            else work.Reader(store, draw, job["fresh"])
        )

    def run(self) -> None:
        """Work until told to end."""
        commands = Commands()
        resting = False
        while True:
            command = commands.next(wait=resting)
            if command is None:
                say("step", **self._work.step())
                continue
            what = command.pop("do")
            if what == "end":
                self._arm(False)
                return
            if what in ("rest", "go"):
                resting = what == "rest"
                self._arm(not resting)
            say(what, **self._answer(what, command))

    def _arm(self, armed: bool) -> None:
        if self._deadly is not None:
            self._deadly.odds = self._odds if armed else 0.0

    def _answer(self, what: str, command: dict[str, Any]) -> dict[str, Any]:
        if what == "rest":
            return work.flushed(self._store)
        if what == "clock":
            self._clock.offset_ns = command["offset_ns"]
        if what == "look":
            return work.look(self._store, self._directory, *command["chain"], command["pages"])
        if what == "audit":
            return self._audit()
        return {}

    def _audit(self) -> dict[str, Any]:
        work.refresh(self._store)
        usage = self._store.cold.usage()
        told = {
            "nbytes": usage.nbytes,
            "limit_bytes": usage.limit_bytes,
            "corrupt": usage.corrupt_pages,
            "state": usage.state,
        }
        for tier in (self._store.hot, self._store.cold):
            try:
                tier.check_integrity()
            except AssertionError as error:
                at = error.__traceback__
                while at is not None and at.tb_next is not None:
                    at = at.tb_next
                where = "" if at is None else f"{at.tb_frame.f_code.co_qualname}:{at.tb_lineno}"
                told["broken"] = f"{where} {error}"
        return told


def main() -> None:
    job = json.loads(sys.argv[1])
    for name in ("omlx_cache", "omlx_cache_storage"):
        # What fails on purpose is a warning; an error nobody expects, and is told at the end.
        logging.getLogger(name).setLevel(logging.ERROR)
    with contextlib.suppress(PermissionError):
        # Who measures must not wait behind eight that work.
        os.nice(5)
    clock = ShiftedClock(job["offset_ns"])
    clock.start()
    deadly = Deadly(random.Random(job["seed"]), job["odds"]) if job["odds"] else None
    store = open_store(
        Path(job["directory"]),
        hot_bytes=512 * KIB,
        queue_bytes=256 * KIB,
        cold_bytes=job["budget"],
        write_policy="through",
        commit_wait_seconds=86400,
    )
    say("ready")
    Worker(job, store, clock, deadly).run()
    say("closed", clean=store.close(CLOSE_SECONDS))


if __name__ == "__main__":
    main()
