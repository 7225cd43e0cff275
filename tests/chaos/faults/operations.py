"""No fault of the machine's: many threads, and people who clear, flush, look and restart."""

from ..requests import Requester
from ..talk import SALTS, Asked
from ..world import roomy_options
from .base import Fault

FLUSH_SECONDS = 20.0


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
        promised: dict[Asked, int] = {asked: main.lookup(asked) for asked in chosen}
        world.reopen()
        world.count()
        for asked, tokens in promised.items():
            found = main.restore(asked)
            world.tally.add(promises=1)
            if found < tokens:
                world.fail("lost", f"{found} of {tokens} tokens after a restart")
