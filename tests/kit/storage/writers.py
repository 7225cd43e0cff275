"""A writer between real tiers, on a disk that can be held up."""

from pathlib import Path
from typing import Any

from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.eviction.keep import Clock
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.hot_page import WRITE_POLICIES, Write
from omlx_cache_storage.page import PageId
from omlx_cache_storage.writer import Writer

from .faults import FaultyDisk
from .pages import Story, expected_payload, read_cold

KIB = 1024


def end_write(hot: HotTier, page: PageId, **how: Any) -> bool:
    """Have a page's write end as `HotTier.end_write` is told; False for one that is not there."""
    held = hot.record(page)
    return held is not None and hot.end_write(Write(page, held.nbytes, held.came_ns), **how)


class WriterRig:
    """A hot tier, a cold tier on a faulty disk, and the writer between them.

    With `takes_up` the writer takes up what memory has and the disk lacks.
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
        writes = WRITE_POLICIES["through" if takes_up else "lazy"]
        self.hot = HotTier(256 * KIB, clock=clock, retain=retain, writes=writes)
        self.cold = ColdTier(directory, 2**30, fs=self.disk, clock=clock)
        self.cold.open()
        self.writer = Writer(self.hot, self.cold, queue_bytes, lambda _: self.story.document)
        self.writer.start()

    def put(self, *numbers: int) -> None:
        for page in self.story.pages(*numbers):
            room = self.hot.reserve(page.meta.nbytes)
            assert room
            self.hot.put(page, room, dirty=True)

    def offer(self, number: int) -> bool:
        page = self.story.id(number)
        return bool(self.hot.rooted([page])) and self.writer.offer([page])

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
