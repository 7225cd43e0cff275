"""Real stores with small budgets, filled without a model, and a writer between real tiers."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from kit.units import KIB
from omlx_cache import BlockStore, CacheSettings
from omlx_cache.control.listing import compare
from omlx_cache_daemon.changing import change_budget
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.small_files import Budget
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.eviction.keep import Clock
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.hot_page import WRITE_POLICIES, PageState, Write
from omlx_cache_storage.page import Page, PageId
from omlx_cache_storage.tiers import Tiers
from omlx_cache_storage.writer import Writer

from .faults import FaultyDisk
from .pages import Story, bytes_of, expected_payload, read_cold


def settings(directory: Path, **options: Any) -> CacheSettings:
    """Return settings of a small, quick store without a socket; `options` replace any of them."""
    known: dict[str, Any] = {
        "cold_dir": directory,
        "hot_bytes": 1024 * KIB,
        "queue_bytes": 256 * KIB,
        "cold_bytes": 16 * 1024 * KIB,
        "min_free_bytes": 0,
        "durability": "none",
        "socket": "off",
    }
    return CacheSettings(**{**known, **options})


def open_store(
    directory: Path, disk: FileSystem | None = None, clock: Clock | None = None, **options: Any
) -> BlockStore:
    return BlockStore(settings(directory, **options), filesystem=disk, clock=clock)


def check_integrity(tiers: Tiers) -> None:
    """Assert that the tiers agree with themselves and with each other while nothing is stored or
    restored: counts, clean pages, reservations."""
    tiers.hot.check_integrity(idle=True)
    if tiers.cold is not None:
        tiers.cold.check_integrity()
    assert not compare(tiers).unbacked


def set_budget(directory: Path, budget: Budget) -> None:
    """Give a directory a budget from outside of its stores."""
    change_budget(directory, lambda _: budget)


def store_page(store: BlockStore, page: Page, keep: Collection[PageId] = ()) -> bool:
    """Admit and put one page as a commit does; True when it was taken as a new one."""
    nbytes = page.meta.nbytes
    if store.hot.info(page.meta.id) is not None:
        return False
    waits = store.settings.commit_wait_seconds > 60
    while True:
        ended = store.writes_ended
        room = store.admit(nbytes, keep)
        if room:
            return store.put(page, room)
        if not waits or nbytes > store.hot.limit_bytes or not store.wait_for_writer(60, ended):
            room = store.admit(nbytes, keep, queue=False)
            return bool(room) and store.put(page, room)


def commit(store: BlockStore, story: Story, *numbers: int) -> list[bool]:
    """Store pages of a chain, root first, and order them, as a session's commit does."""
    keep = set(story.ids(*numbers))
    done = [store_page(store, page, keep) for page in story.pages(*numbers)]
    store.touch(story.ids(*numbers), used=False)
    return done


def commit_to_disk(store: BlockStore, story: Story, *numbers: int) -> None:
    """Commit pages, and wait until the disk has what the store has not written."""
    commit(store, story, *numbers)
    assert store.flush(60)


def state_of(store: BlockStore) -> str:
    """Return what a store says of its disk."""
    return store.stats().cold.state


def fetch(store: BlockStore, page: PageId) -> bytes | None:
    """Return a page's payload from whichever tier has it, None for a miss; raises PageError."""
    info = store.find(page)
    if info is None:
        return None
    held = store.hot.get(page)
    if held is not None:
        return bytes_of(held)
    return read_cold(store.cold, page)


def is_right(store: BlockStore, page: PageId, nbytes: int) -> bool:
    """True when the store serves the page, with exactly the bytes that it must have."""
    return fetch(store, page) == expected_payload(page, nbytes)


def put(hot: HotTier, page: Page, **how: Any) -> None:
    """Have memory take a page, for which it has room."""
    room = hot.reserve(page.meta.nbytes)
    assert room
    assert hot.put(page, room, **how)


def page_state(hot: HotTier, page: PageId) -> PageState | None:
    held = hot.record(page)
    return None if held is None else held.state


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
            put(self.hot, page, dirty=True)

    def offer(self, number: int) -> bool:
        page = self.story.id(number)
        return page_state(self.hot, page) is PageState.DIRTY and self.writer.offer([page])

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
