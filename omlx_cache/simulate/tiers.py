"""Tiers in virtual time: clock, writer, disk, and pages, which have sizes and no bytes. The code of
the real tiers decides which pages stay, are evicted or are rejected."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from omlx_cache.simulate.traces import Workload
from omlx_cache_storage.cold.deletion import Deleter
from omlx_cache_storage.cold.eviction import DIRECTORY_SLACK_BYTES, Evictor, Writing
from omlx_cache_storage.cold.index import Candidate, PendingDeletion
from omlx_cache_storage.cold.ledger_records import Change
from omlx_cache_storage.cold.page_writer import PageWriter
from omlx_cache_storage.cold.sharing import Sharing
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.events import Departures
from omlx_cache_storage.eviction.keep import Clock, Keep, Learned, Lru
from omlx_cache_storage.format.names import ENTRY_BYTES, StoredPage, name_of
from omlx_cache_storage.keys import NAMESPACE_BYTES, BlockKey
from omlx_cache_storage.page import (
    PAGED,
    Page,
    PageId,
    PageMeta,
    Tensors,
    TensorSpec,
    WriteResult,
)
from omlx_cache_storage.writer import Writer

NAMESPACE = BlockKey(bytes(NAMESPACE_BYTES))
HEADER_BYTES = 16 * 1024
"""Bytes that a page's file takes beside its payload: the data section begins there."""


class VirtualClock(Clock):
    """Stamps of a time that its owner sets; each is later than all before."""

    def __init__(self, start_ns: int) -> None:
        super().__init__()
        self._now_ns = start_ns

    def set(self, now_ns: int) -> None:
        """Let it be this late; never earlier than before."""
        self._now_ns = max(self._now_ns, now_ns)

    def now(self) -> int:
        with self._lock:
            self._last = max(self._last + 1, self._now_ns)
            return self._last


class DirectWriter(Writer):
    """Writes offered pages at once, on the caller's thread: a disk that is never behind."""

    def start(self) -> None:
        """Start nothing."""

    def offer(self, pages: Iterable[PageId]) -> bool:
        for page in pages:
            if not super().offer([page]):
                return False
            while self._jobs:
                job = self._jobs.popleft()
                self._count(job, self._write(job))
        return True

    def flush(self, timeout: float) -> bool:
        """Record recency; nothing is ever queued."""
        self._settle()
        return True

    def settle(self, timeout: float) -> bool:
        return self.flush(timeout)

    def stop(self, timeout: float) -> bool:
        self._stopping = True
        return self.flush(timeout)


class _VirtualSharing(Sharing):
    @contextmanager
    def changing(self, seconds: float = 0.0) -> Iterator[None]:
        yield

    def tell(self, *changes: Change) -> None:
        """There is no peer process."""


class _VirtualDeleter(Deleter):
    """Deletes nothing: there are no files."""

    def delete_held(self, files: Sequence[PendingDeletion]) -> None:
        self._index.doomed.end(*(file.name for file in files))


class _VirtualEvictor(Evictor):
    """Has a disk of which nothing is known but the budget."""

    def lacking(self, nbytes: int) -> tuple[int, int]:
        return 0, 0

    def catch_up(self, pages: Sequence[PageId], asked: set[PageId]) -> bool:
        return False

    def places_of(self, writing: Writing) -> int:
        return 0

    def expel(self, pages: list[PageId]) -> list[PendingDeletion]:
        with self._index.lock:
            evicted = self.evict(pages)
        self._deleter.delete_held(evicted)
        return evicted


class _VirtualPageWriter(PageWriter):
    def write(self, page: Page, time_ns: int, document: Mapping[str, object]) -> WriteResult:
        """Take a page; raises nothing."""
        meta = page.meta
        candidate = Candidate(meta.id, meta.position, time_ns)
        result = self.decided(candidate, meta.held)
        if result is None:
            wanted = StoredPage(meta.namespace, name_of(meta), file_bytes(meta.nbytes))
            writing = Writing(candidate, wanted, meta.parent, document, [], "", "", "", "")
            result = self._evictor.make(writing)
            if result is None:
                self.take(writing, wanted.nbytes)
        return result or "written"


class VirtualCold(ColdTier):
    """A cold tier without files: it decides as the real one does. Nothing can be read from it."""

    def __init__(
        self,
        limit_bytes: int,
        *,
        clock: Clock,
        departures: Departures | None = None,
        policy: Callable[[Learned | None], Keep] = Lru,
    ) -> None:
        super().__init__(
            Path("virtual"),
            limit_bytes,
            clock=clock,
            departures=departures,
            policy=policy,
            sharing_type=_VirtualSharing,
            deleter_type=_VirtualDeleter,
            evictor_type=_VirtualEvictor,
            writer_type=_VirtualPageWriter,
        )

    def settle(self) -> None:
        """Record nothing: there is no disk that must learn of recency."""
        with self._index.lock:
            self._index.unrecorded.clear()


def file_bytes(payload_bytes: int) -> int:
    return payload_bytes + HEADER_BYTES


def room_for(pages: int, payload_bytes: int) -> int:
    """Return the budget of a cold tier that holds exactly so many pages of one size."""
    return pages * (file_bytes(payload_bytes) + ENTRY_BYTES) + DIRECTORY_SLACK_BYTES


class SimulatedPages:
    """The pages of a workload, all of `nbytes`, made when they are first asked for."""

    def __init__(self, workload: Workload, nbytes: int) -> None:
        self.nbytes = nbytes
        # None is the namespace's, and their first bytes tell them apart.
        numbers = ((n + 1).to_bytes(8, "big") for n in range(workload.pages))
        self.ids = [PageId(BlockKey(n.ljust(NAMESPACE_BYTES, b"\0")), PAGED) for n in numbers]
        self._size = workload.block_size
        self._tensors = Tensors((TensorSpec("kv", "U8", (nbytes,)),))
        self._made: dict[int, Page] = {}

    def page(self, chain: Sequence[int], at: int) -> Page:
        number = chain[at]
        if number not in self._made:
            meta = PageMeta(
                namespace=NAMESPACE,
                key=self.ids[number].key,
                parent=self.ids[chain[at - 1]].key if at else NAMESPACE,
                group=PAGED,
                position=(at + 1) * self._size,
                held=self._size,
                tail=False,
                codec="dense",
                tensors=self._tensors,
            )
            self._made[number] = Page(meta, None)
        return self._made[number]
