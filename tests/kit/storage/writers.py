"""A writer between real tiers, on a disk that can be held up."""

from pathlib import Path

from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.eviction.keep import Clock
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.writer import Writer

from .faults import FaultyDisk
from .pages import Story, expected_payload, read_cold

KIB = 1024


class WriterRig:
    """A hot tier, a cold tier on a faulty disk, and the writer between them.

    With `takes_up` what memory has and the disk lacks is the writer's backlog.
    """

    def __init__(
        self,
        directory: Path,
        queue_bytes: int,
        *,
        takes_up: bool = False,
        retain: bool = True,
        disk: FaultyDisk | None = None,
    ) -> None:
        self.clock = clock = Clock()
        self.story = Story(nbytes=4 * KIB)
        self.disk = disk or FaultyDisk()
        self.hot = HotTier(256 * KIB, clock=clock, retain=retain)
        self.cold = ColdTier(directory, 2**30, fs=self.disk, clock=clock)
        self.cold.open()
        backlog = self.hot.dirty if takes_up else tuple
        self.writer = Writer(
            self.hot, self.cold, queue_bytes, lambda _: self.story.document, backlog
        )
        self.writer.start()

    def put(self, *numbers: int) -> None:
        for page in self.story.pages(*numbers):
            room = self.hot.reserve(page.meta.nbytes)
            assert room
            self.hot.put(page, room, dirty=True)

    def offer(self, number: int) -> bool:
        return self.writer.offer(self.story.id(number), self.story.nbytes)

    def block(self) -> None:
        """Let the next write begin and stop there."""
        self.disk.gate.clear()
        self.disk.reached.clear()

    def on_disk(self, number: int) -> bool:
        page = self.story.id(number)
        if page not in self.cold:
            return False
        return read_cold(self.cold, page) == expected_payload(page, self.story.nbytes)

    def close(self) -> None:
        self.disk.gate.set()
        self.writer.stop(30)
