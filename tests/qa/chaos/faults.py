"""What breaks while requests run: one class for each fault, by its name in the table.

Here the process and its people; the faults of disks are in `disks`.
"""

import contextlib
import os
import resource
import signal
import time
from collections.abc import Iterator
from types import FrameType
from typing import ClassVar
from unittest import mock

from omlx_cache_storage.cold.disk import FileSystem

from .requests import SALTS, Interrupted, Requester
from .world import FLUSH_SECONDS, World, roomy_options, small_options

JUMPS = (0.001, 1.0, 3_600.0, 86_400.0, 86_400.0 * 365 * 20)


class Fault:
    """A fault of one round. Every method runs on the round's own thread.

    `threads`: how many may make requests at once. `main` is that thread's requester.
    """

    name: ClassVar[str]
    threads: ClassVar[int] = 4

    def __init__(self, world: World) -> None:
        self.world = world
        self.draw = world.random("fault")

    def options(self) -> dict[str, object]:
        """Return the settings of the round's store."""
        return small_options(self.draw)

    def disk(self) -> FileSystem | None:
        """Return the file system of the round's store, None for the real one."""
        return None

    def begin(self) -> None:
        """Set up before the store opens; skips where the machine does not let it."""

    def tick(self, main: Requester) -> None:
        """Do something between two requests of the round's own thread, and count it."""

    def calm(self) -> None:
        """End the fault: from here on all is well."""

    def end(self) -> None:
        """Undo what `begin` did, after the store was closed."""


class Calm(Fault):
    name = "threads"

    def tick(self, main: Requester) -> None:
        self.world.count()


class Operations(Fault):
    """`clear` of a salt, `flush`, `lookup`, `stats`, restarts, beside three threads of requests."""

    name = "clear, flush, restart"

    def tick(self, main: Requester) -> None:
        if self.draw.random() < 0.5:
            return
        world, store = self.world, self.world.store
        what = self.draw.choice(["clear", "clear", "flush", "flush", "look", "shrink", "restart"])
        world.count()
        if what == "clear":
            with world.timed("clear", 30.0):
                main.cache.clear(salt=self.draw.choice(SALTS))
        elif what == "flush":
            timeout = self.draw.choice([0.0, 0.05, 2.0])
            with world.timed("flush", timeout):
                store.flush(timeout)
        elif what == "look":
            with world.timed("listing", 0.0):
                store.listing()
            for asked in list(main.committed)[-3:]:
                with world.timed("lookup", 0.0):
                    main.lookup(asked)
        elif what == "shrink":
            with world.timed("shrink_hot", 0.0):
                store.shrink_hot(self.draw.randrange(32 * 1024))
        elif self.draw.random() < 0.3:
            world.reopen()


class Restarts(Fault):
    """With room for everything, each sequence that was durable is there after a restart."""

    name = "restart"
    threads = 2

    def options(self) -> dict[str, object]:
        return roomy_options(self.draw)

    def tick(self, main: Requester) -> None:
        if self.draw.random() < 0.9 or not main.committed:
            return
        world = self.world
        with world.timed("flush", FLUSH_SECONDS):
            durable = world.store.flush(FLUSH_SECONDS)
        if not durable:
            world.fail("stuck", "flush was False on a disk that refuses nothing")
            return
        chosen = self.draw.sample(list(main.committed), min(12, len(main.committed)))
        promised = {asked: main.lookup(asked) for asked in chosen}
        world.reopen()
        world.count()
        for asked, tokens in promised.items():
            found = main.restore(asked)
            world.tally.add(promises=1)
            if found < tokens:
                world.fail("lost", f"{found} of {tokens} tokens after a restart")


class ShiftedClock:
    """From `start` to `stop`, `time.time` and `time.time_ns` are off by `offset_ns`."""

    def __init__(self, offset_ns: int = 0) -> None:
        self.offset_ns = offset_ns
        real = time.time_ns

        def shifted_ns() -> int:
            return real() + self.offset_ns

        def shifted() -> float:
            return shifted_ns() / 1e9

        self._patches = [mock.patch("time.time_ns", shifted_ns), mock.patch("time.time", shifted)]

    def start(self) -> None:
        for patch in self._patches:
            patch.start()

    def stop(self) -> None:
        for patch in self._patches:
            patch.stop()


class ClockJumps(Fault):
    name = "clock jumps"

    def begin(self) -> None:
        self._clock = ShiftedClock()
        self._clock.start()
        self._latest_ns = 0

    def tick(self, main: Requester) -> None:
        if self.draw.random() < 0.2:
            jump = self.draw.choice(JUMPS) * self.draw.uniform(-1, 1)
            # A clock before 1970 is no clock.
            shifted_ns = int(self._clock.offset_ns + jump * 1e9)
            self._clock.offset_ns = max(shifted_ns, -86_400 * 10**9 * 365 * 40)
            self._latest_ns = max(self._latest_ns, self._clock.offset_ns)
            self.world.count()
        if self.draw.random() < 0.03:
            self.world.reopen()

    def calm(self) -> None:
        # Pages that were used in what is now the future are worth more than any new one.
        self._clock.offset_ns = self._latest_ns

    def end(self) -> None:
        self._clock.stop()


class Interrupts(Fault):
    """Ctrl-C at random instants of the calls that a scheduler makes on its main thread.

    A timer's signal stands in for SIGINT, which stays with whoever runs the campaign; both run a
    handler that raises KeyboardInterrupt between two instructions of the main thread.
    """

    name = "interrupts"
    threads = 1

    def begin(self) -> None:
        self._armed = False
        self._before = signal.signal(signal.SIGALRM, self._interrupt)
        self.world.interrupt = self._interrupting

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._armed:
            self._armed = False
            raise Interrupted

    @contextlib.contextmanager
    def _interrupting(self) -> Iterator[None]:
        if self.draw.random() < 0.7:
            yield
            return
        try:
            self._armed = True
            signal.setitimer(signal.ITIMER_REAL, self.draw.choice([1e-4, 1e-3, 5e-3]))
            yield
        except Interrupted:
            self.world.count()
            raise
        finally:
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def calm(self) -> None:
        self.world.interrupt = contextlib.nullcontext

    def end(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)


class FewDescriptors(Fault):
    name = "EMFILE"

    def begin(self) -> None:
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._held: list[int] = []

    def options(self) -> dict[str, object]:
        return {**super().options(), "hot_cache_only": False}

    def tick(self, main: Requester) -> None:
        if self.draw.random() < 0.4:
            self.calm()
            return
        if self._held or self.draw.random() < 0.5:
            return
        highest = max(int(name) for name in os.listdir("/dev/fd"))
        few = min(highest + 12, self._limits[0])
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, self._limits[1]))
        left = self.draw.choice([0, 1, 2, 4])
        with contextlib.suppress(OSError):
            while True:
                self._held.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(min(left, len(self._held))):
            os.close(self._held.pop())
        self.world.count()

    def calm(self) -> None:
        while self._held:
            os.close(self._held.pop())
        resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)

    def end(self) -> None:
        self.calm()
