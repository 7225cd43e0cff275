"""Rounds of every kind in turns, or many processes on one directory."""

import argparse
import faulthandler
import gc
import itertools
import logging
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from kit.work import resident_bytes
from omlx_cache.upkeep.thread import release_freed_memory

from .rounds import ROUNDS
from .shared import run_shared
from .tally import MEANINGS, Tally
from .world import World

ROUND_SECONDS = 240.0
MLX_THREAD_BYTES = 32 * 1024
"""What MLX keeps of each thread that ever evaluated an array: an OS thread, for good."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; 1 when anything went wrong."""
    parser = argparse.ArgumentParser(prog="python -m qa.chaos", description=__doc__)
    parser.add_argument("what", nargs="?", choices=["rounds", "shared"], default="rounds")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--only", default="", metavar="KIND[:N]", help="one kind, or one round")
    args = parser.parse_args(arguments)
    kind, _, number = args.only.partition(":")
    kinds = [kind] if kind else list(ROUNDS)
    if not set(kinds) <= set(ROUNDS):
        parser.error(f"no kind of round is {kind!r}; there are {', '.join(ROUNDS)}")
    for name in ("omlx_cache", "omlx_cache_storage"):
        # What fails on purpose is logged thousands of times.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    sys.stderr.write(f"seed {args.seed}\n")
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="oc-") as directory:
        if args.what == "shared":
            run_shared(args.minutes * 60, args.seed, tally, Path(directory))
        else:
            campaign = Campaign(kinds, args.seed, tally, Path(directory))
            if number:
                campaign.one(kind, int(number))
            else:
                campaign.run(args.minutes * 60)
    sys.stdout.write(tally.table())
    for verdict in sorted({failure.verdict for failure in tally.failures}):
        sys.stdout.write(f"{verdict}: {MEANINGS[verdict]}\n")
    return 1 if tally.failures else 0


class Campaign:
    """Runs rounds on the calling thread; a round that hangs ends the process, with all stacks."""

    def __init__(self, kinds: Sequence[str], seed: int, tally: Tally, base: Path) -> None:
        self._kinds, self._seed, self._tally, self._base = kinds, seed, tally, base
        self._memory: list[int] = []

    def run(self, seconds: float) -> None:
        """Run all kinds in turns until the time is over; stops cleanly at Ctrl-C."""
        end = time.monotonic() + seconds
        try:
            for number in itertools.count():
                for kind in self._kinds:
                    if time.monotonic() > end:
                        return
                    self.one(kind, number)
        except KeyboardInterrupt:
            sys.stderr.write("interrupted: what was done until now is reported\n")
        finally:
            self._look_at_memory()

    def one(self, kind: str, number: int) -> None:
        """Run one round in a directory of its own."""
        sys.stderr.write(f"{kind}:{number}\n")
        directory = self._base / f"{kind.replace(' ', '-')}-{number}"
        directory.mkdir()
        world = World(kind, number, self._seed, self._tally, directory)
        watch = threading.Timer(ROUND_SECONDS, self._hangs, [world])
        watch.start()
        try:
            ROUNDS[kind](world)
        except Exception as error:
            world.fail("stuck", f"the round raised {type(error).__name__}: {error}")
        finally:
            watch.cancel()
            shutil.rmtree(directory, ignore_errors=True)
        # What allocators keep for later, an arena for each thread that ever was, is no leak.
        gc.collect()
        release_freed_memory()
        self._memory.append(_owned_bytes())

    @staticmethod
    def _hangs(world: World) -> None:
        world.fail("stuck", "the round did not end")
        faulthandler.dump_traceback(all_threads=True)
        os._exit(1)

    def _look_at_memory(self) -> None:
        """The process at the end is no larger than when every kind had its turn, but for noise."""
        settled = 2 * len(self._kinds)
        if len(self._memory) < 3 * settled:
            return
        after = sorted(self._memory[-settled:])[settled // 2]
        grown = after - max(self._memory[settled // 2 : settled])
        if grown > 32 * 2**20 and grown > 8192 * (len(self._memory) - settled):
            repeat = f"python -m qa.chaos --seed {self._seed}"
            self._tally.fail("memory", "left", f"{grown} bytes more after all rounds", repeat)


def _owned_bytes() -> int:
    """Return the resident bytes without what MLX keeps of threads that have ended; 0 where the
    system does not say."""
    if not os.path.isdir("/proc/self/task"):
        return 0
    return resident_bytes(os.getpid()) - len(os.listdir("/proc/self/task")) * MLX_THREAD_BYTES


if __name__ == "__main__":
    raise SystemExit(main())
