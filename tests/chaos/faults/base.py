"""What a fault is to a round of requests."""

from typing import ClassVar

from omlx_cache_storage.cold.disk import FileSystem

from ..requests import Requester
from ..world import World, small_options


class Unavailable(Exception):
    """This machine does not let the fault happen; the message says what to allow."""


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
        """Set up before the store opens; raises Unavailable."""

    def tick(self, main: Requester) -> None:
        """Do something between two requests of the round's own thread, and count it."""

    def calm(self) -> None:
        """End the fault: from here on all is well."""

    def end(self) -> None:
        """Undo what `begin` did, after the store was closed."""
