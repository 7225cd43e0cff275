"""A process that makes requests until it is killed: `python -m chaos.victim JOB.json`.

Writes a line of JSON for everything that whoever kills it must know: what it is about to ask, and
what `flush` promised. What an earlier one was promised is restored first.
"""

import json
import logging
import sys
from pathlib import Path
from typing import Any

from .requests import Requester
from .sampling import sampled
from .subjects import MIXTURES
from .talk import Asked
from .tally import Tally
from .world import World

FLUSH_SECONDS = 20.0


def say(**words: Any) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


class Victim:
    """Checks what it was promised, then stores more until it ends; `job` says how."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.tally = Tally()
        self.world = World(
            "kill -9",
            job["number"],
            job["seed"],
            self.tally,
            Path(job["directory"]),
            sessions=job["sessions"],
            grace=job["grace"],
        )
        # The random numbers of a life, not of the directory that several lives share.
        self.world.options = job["options"]
        self.main = Requester(self.world, MIXTURES[job["mixture"]], job["life"])
        self.promised = [(Asked(tuple(t), salt), count) for t, salt, count in job["promised"]]
        self.tight: bool = job["tight"]

    def run(self) -> None:
        world = self.world
        world.open()
        self._check()
        say(checked=self.tally.document())
        with sampled(world, 1):
            for number in range(world.sessions):
                say(began=number)
                self.main.run(1)
                if self.tight or number % 4 == 3:
                    self._flush(list(self.main.committed)[-1:] if self.tight else self._some())
        say(ended=self.tally.document())

    def _check(self) -> None:
        for asked, count in self.promised:
            found = self.main.restore(asked)
            self.tally.add(promises=1)
            if found < count:
                self.world.fail("lost", f"{found} of {count} durable tokens after kill -9")

    def _some(self) -> list[Asked]:
        return list(self.main.committed)[-4:]

    def _flush(self, chosen: list[Asked]) -> None:
        with self.world.timed("flush", FLUSH_SECONDS):
            durable = self.world.store.flush(FLUSH_SECONDS)
        if durable:
            # Found where it lies now: all of it is on the disk.
            counts = [[asked.tokens, asked.salt, self.main.lookup(asked)] for asked in chosen]
            say(promised=counts)
        else:
            self.world.fail("stuck", "flush was False on a disk that refuses nothing")


def main() -> None:
    logging.getLogger("omlx_cache").setLevel(logging.CRITICAL)
    logging.getLogger("omlx_cache_storage").setLevel(logging.CRITICAL)
    Victim(json.loads(Path(sys.argv[1]).read_text())).run()


if __name__ == "__main__":
    main()
