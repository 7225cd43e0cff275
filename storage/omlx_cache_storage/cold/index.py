"""A process's knowledge of a cold directory, without touching the disk: its pages with their order
and bytes, and the files that should be deleted."""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from omlx_cache_storage.breaker import Health
from omlx_cache_storage.cold.catalog import read_namespace
from omlx_cache_storage.events import HOWS, OTHER_PROCESS, Departures, EventLog, How
from omlx_cache_storage.eviction.keep import NEVER_NS, SUPERSEDED_NS, Clock, Keep, Learned
from omlx_cache_storage.eviction.order import OrderedPages, Record
from omlx_cache_storage.format.names import (
    ENTRY_BYTES,
    PARENT_HINT_BYTES,
    PageName,
    StoredPage,
    page_path,
)
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PAGED, PageId
from omlx_cache_storage.pins import SHARE, Pinned, Pins
from omlx_cache_storage.stats import Kind

TOGETHER = 1024
"""Pages that are pinned, released or deleted while lookups wait."""


class PageFile(Record):
    """A page's file: one that takes another's name is a different record. `recorded_ns` is the time
    that this process gave the file last, 0 if it gave none. `undecodable`: it is hidden from
    lookups; `Contents` alone changes that."""

    __slots__ = ("recorded_ns", "undecodable")
    entry_bytes = ENTRY_BYTES

    def __init__(self, stored: StoredPage) -> None:
        super().__init__(stored)
        self.recorded_ns = 0
        self.undecodable = False


class Candidate(NamedTuple):
    page: PageId
    position: int
    stamp_ns: int

    @property
    def rank(self) -> tuple[int, int]:
        return self.stamp_ns, -self.position


class Victims(NamedTuple):
    """Pages whose eviction makes room. `enough` is False when it does not; `outranked`: a page of
    more worth than the candidate stood in the way. When that is so only because it was used
    recently, `young_ns` is the time of that use, else 0."""

    pages: list[PageId]
    enough: bool
    outranked: bool = False
    young_ns: int = 0


def rooted(files: Iterable[tuple[StoredPage, int]]) -> list[tuple[StoredPage, int]]:
    """Return the files with their stamps, no page's earlier than the stamps of the pages behind it.
    A killed process had not recorded the latest use of a chain: the new deep end would outlive the
    root."""
    found = list(files)
    names, stamps = [file.name for file, _ in found], [stamp_ns for _, stamp_ns in found]
    paged = {
        name.id.key[:PARENT_HINT_BYTES]: number
        for number, name in enumerate(names)
        if name.id.group == PAGED
    }
    for number in sorted(range(len(names)), key=lambda number: -names[number].position):
        before = paged.get(names[number].parent_hint)
        # A superseded page leaves first, whatever follows it; and a name may say anything.
        if (
            before is not None
            and names[before].position < names[number].position
            and min(stamps[before], stamps[number]) > SUPERSEDED_NS
        ):
            stamps[before] = max(stamps[before], stamps[number])
    return [(file, stamp_ns) for (file, _), stamp_ns in zip(found, stamps, strict=True)]


class Contents(OrderedPages[PageFile]):
    """Indexes page files and orders them for eviction. Not thread-safe: its owner's lock guards it.

    An undecodable page keeps its bytes and its place in the order, and is hidden from lookups;
    `undecodable` counts them.
    """

    def __init__(self, policy: Keep | None = None) -> None:
        super().__init__(policy)
        self.undecodable = 0

    def fill(self, files: Iterable[tuple[StoredPage, int]]) -> list[StoredPage]:
        """Take many files with their stamps into empty contents; return the useless ones.

        Of several files of one page the one that holds most is taken, and of equal ones the latest.
        """
        best: dict[PageId, tuple[StoredPage, int]] = {}
        useless: list[StoredPage] = []
        for file in files:
            page = file[0].name.id
            other = best.setdefault(page, file)
            if other is not file:
                worse, better = sorted((file, other), key=lambda of: (of[0].held, of[1]))
                best[page] = better
                useless.append(worse[0])
        for stored, stamp_ns in rooted(best.values()):
            self.add(PageFile(stored), stamp_ns)
        return useless

    def usable(self, page: PageId) -> PageFile | None:
        file = self.get(page)
        return None if file is None or file.undecodable else file

    def quarantine(self, page: PageId) -> None:
        if (file := self.usable(page)) is not None:
            file.undecodable = True
            self.undecodable += 1

    def victims(
        self,
        excess: int,
        candidate: Candidate | None = None,
        now_ns: int = sys.maxsize,
        until_ns: int = sys.maxsize,
        most: int = sys.maxsize,
    ) -> Victims:
        """Choose pages to evict for `excess` bytes, the first in the order first. At most `most`
        pages are returned: enough, or the first of enough.

        For a candidate only pages of less worth are chosen, and its own earlier version. None of
        them is pinned beyond `now_ns`, or was used after `until_ns` by another use. So a chain's
        deep end never evicts its root.
        """
        pages: list[PageId] = []
        if excess <= 0 or excess > self.nbytes:
            return Victims(pages, excess <= 0)
        for file in self.in_order():
            if candidate is not None and file.id != candidate.page:
                outranked = file.rank >= candidate.rank
                if outranked or until_ns < file.stamp_ns != candidate.stamp_ns:
                    return Victims(pages, False, True, 0 if outranked else file.stamp_ns)
                if file.pinned_ns > now_ns:
                    continue
            pages.append(file.id)
            excess -= file.cost
            if excess <= 0 or len(pages) == most:
                return Victims(pages, True)
        return Victims(pages, False)

    def check_integrity(self) -> None:
        super().check_integrity()
        assert self.undecodable == sum(file.undecodable for file in self.records())


class PendingDeletion(NamedTuple):
    """A file that should be gone, `why` in a word: of a page that has left the index, or a
    temporary one, without a page. `name` is the page's, or the path of a file that lies
    elsewhere."""

    name: PageName | str
    page: StoredPage | None
    cost: int
    why: str = "disk"


class Costly(Protocol):
    @property
    def cost(self) -> int: ...


Name = TypeVar("Name", bound=Hashable)
Thing = TypeVar("Thing", bound=Costly)
Item = TypeVar("Item")


class Counted(dict[Name, Thing]):
    """Things that take `nbytes` of the budget beside pages, by name. Any thread may read; only
    `count`, `gather` and `end` change it, under `_lock`, which is held over no other."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self.nbytes = 0

    def count(self, name: Name, thing: Thing) -> None:
        with self._lock:
            old = self.pop(name, None)
            self[name] = thing
            self.nbytes += thing.cost - (0 if old is None else old.cost)

    def gather(self, prefix: str, name: Name, thing_of: Callable[[int], Thing]) -> None:
        """Count the things whose names begin so as one thing, of the bytes that they take."""
        with self._lock:
            inside = [one for one in self if isinstance(one, str) and one.startswith(prefix)]
            self[name] = thing_of(sum(self.pop(one).cost for one in inside))

    def end(self, *names: Name) -> None:
        with self._lock:
            for name in names:
                thing = self.pop(name, None)
                self.nbytes -= 0 if thing is None else thing.cost

    def check_integrity(self) -> None:
        with self._lock:
            assert self.nbytes == sum(thing.cost for thing in self.values())


class Index:
    """Knows the page files of a directory, when they were used and which cannot be read. Touches no
    disk; `doomed` are files that should be deleted and may still exist. Any thread may call.

    `lock` guards all that mutates, and the fields that its users' docstrings name: `lost` are pages
    that left, with their stamps then, and that the writer has not taken (memory may believe them to
    be here), `cleared` namespaces to clear before the directory is read, `unrecorded` pages whose
    files lack their stamps, `namespaces` how many pages are of which. No I/O, sorting or making of
    paths happens under it. The methods for changes of peer processes (`take_in`, `leave`,
    `place`), `go_by_pins`, `knows`, `drop_damaged` and `is_indexed` take it; callers of the other
    methods hold it. Deletions and publications keep apart by `Sharing.changing`, which is taken
    before it. `contents` is always the same object.
    """

    def __init__(
        self,
        directory: Path,
        limit_bytes: int,
        clock: Clock,
        policy: Callable[[Learned | None], Keep],
        departures: Departures,
        events: EventLog,
    ) -> None:
        self.directory = directory
        self.limit_bytes = limit_bytes
        self.clock = clock
        self.make_policy = policy
        self.departures = departures
        self.events = events
        self.doomed: Counted[PageName | str, PendingDeletion] = Counted()
        self.pins = Pins(partial(read_namespace, directory))
        self.lock = threading.Lock()
        self.contents = Contents(policy(None))
        self.health = Health()
        self.unrecorded: set[PageId] = set()
        self.lost: list[tuple[PageId, int]] = []
        self.cleared: set[BlockKey] = set()
        self.namespaces: Counter[BlockKey] = Counter()
        # Pages worth less than the last one that was refused are refused unseen: a smaller one
        # would fill the gap behind a page that its chain lacks.
        self.refused_rank: tuple[int, int] | None = None
        self.refused_until_ns = 0
        self.corrupt = 0

    def is_still(self, file: PageFile) -> bool:
        """True unless a page was written anew since its file was found: that one is neither gone
        nor wrong."""
        return self.contents.get(file.id) is file

    def _wanted_until(self, file: PageFile) -> int:
        return self.pins.until(file.namespace, file.id.key)

    def put(self, stored: StoredPage, stamp_ns: int, *, used: bool) -> PageFile:
        """Index a page that is not here, as long as pins keep it or as one that was used then;
        return its record. A file of its name that should be gone was replaced by it."""
        self.doomed.end(stored.name)
        file = PageFile(stored)
        if self.pins.version:
            most, until_ns = self.limit_bytes // SHARE, self._wanted_until(file)
            self.contents.pin(file, until_ns, self.clock.now(), most)
        if used and not file.pinned_ns:
            self.contents.policy.wanted([file.id], stamp_ns)
        self.contents.add(file, stamp_ns)
        self.namespaces[file.namespace] += 1
        return file

    def go_by_pins(self, namespaces: Collection[BlockKey]) -> None:
        with self.lock:
            files = self.contents.records()
        files = [file for file in files if file.namespace in namespaces or file.pinned_ns]
        files.sort(key=lambda file: file.position)
        for most in (0, self.limit_bytes // SHARE):
            for part in self.in_parts(files):
                self.repin(part, most)

    def in_parts(self, pages: Sequence[Item]) -> Iterator[Sequence[Item]]:
        """Yield some of the pages at a time, and hold the lock until the next."""
        for start in range(0, len(pages), TOGETHER):
            with self.lock:
                yield pages[start : start + TOGETHER]

    def repin(self, files: Iterable[PageFile], most_bytes: int) -> Pinned:
        """Pin those of some files that a pin wants, as `OrderedPages.repin` does."""
        self.refused_rank = None
        return self.contents.repin(
            [file for file in files if self.is_still(file)],
            self._wanted_until,
            self.clock.now(),
            most_bytes,
        )

    def take_in(self, page: StoredPage, stamp_ns: int) -> None:
        stamp_ns = min(stamp_ns, self.clock.now())
        with self.lock:
            before = self.pop(page.name.id)
            self.put(page, max(stamp_ns, before.stamp_ns) if before else stamp_ns, used=False)
            self.events.note_file("stored", page, OTHER_PROCESS)
        if before is not None and before.stored.name != page.name:
            # The process that replaced it deletes its file and tells so, or could not.
            self.doom(before.stored, "disk")

    def leave(self, page: StoredPage, why: str) -> None:
        name = page.name.id
        self.doomed.end(page.name)
        with self.lock:
            file = self.pop(name) if self.has_file(page.name) else None
            if file is None:
                return
            self.lost.append((name, file.stamp_ns))
            self.events.note_file(
                "evicted" if why == "disk" else "removed",
                page,
                f"{OTHER_PROCESS}: damaged" if why == "damaged" else OTHER_PROCESS,
            )
        for how in HOWS:
            self.departures.note([name] if how == why else [], how)

    def place(self, pages: Iterable[PageId], stamp_ns: int, *, own: bool = False) -> None:
        """Have pages leave first, at a stamp for superseded ones; with `own` their files are to
        say so."""
        with self.lock:
            placed = self.contents.touch(self.contents.unpinned(pages, self.clock.now()), stamp_ns)
            self.unrecorded.update(placed if own else ())
            self.refused_rank = None

    def knows(self, name: PageName) -> bool:
        return self.is_indexed(name) or name in self.doomed

    def drop(
        self, pages: Iterable[PageId], why: How, detail: str | None = ""
    ) -> list[PendingDeletion]:
        """Take pages out of the index and return their files, which are doomed. Each is an event,
        but without a `detail`."""
        removed = [file for page in pages if (file := self.pop(page)) is not None]
        # Memory may have taken one that was deleted, or damaged, for written meanwhile.
        is_evicted = why == "disk"
        self.lost += [(file.id, file.stamp_ns if is_evicted else NEVER_NS) for file in removed]
        if detail is not None:
            kind: Kind = "evicted" if is_evicted else "removed"
            for file in removed:
                self.events.note_file(kind, file.stored, detail)
        if why != "removed":
            self.departures.note([file.id for file in removed], why)
        return [self.doom(file.stored, why) for file in removed]

    def drop_damaged(self, file: PageFile) -> list[PendingDeletion]:
        with self.lock:
            found = [file.id] if self.is_still(file) else []
            self.corrupt += len(found)
            return self.drop(found, "damaged", "damaged")

    def pop(self, page: PageId) -> PageFile | None:
        file = self.contents.pop(page)
        if file is not None:
            self.contents.undecodable -= file.undecodable
            self.namespaces[file.namespace] -= 1
            self.unrecorded.discard(page)
            self.refused_rank = None
            self.health.forget(page)
        return file

    def know(self, contents: Contents) -> None:
        gone = [file.id for file in self.contents.records() if file.id not in contents]
        self.contents.become(contents)
        self.namespaces = Counter(file.namespace for file in contents.records())
        self.lost += [(page, NEVER_NS) for page in gone]
        self.departures.note(gone, "removed")
        self.unrecorded = {page for page in self.unrecorded if page in contents}
        self.refused_rank = None

    def path(self, stored: StoredPage) -> str:
        return page_path(self.directory, stored.namespace, stored.name)

    def path_of(self, file: PendingDeletion) -> str:
        return self.path(file.page) if file.page and file.page.name == file.name else str(file.name)

    def has_file(self, name: PageName) -> bool:
        file = self.contents.get(name.id)
        return file is not None and file.stored.name == name

    def doom(self, page: StoredPage, why: str) -> PendingDeletion:
        file = PendingDeletion(page.name, page, page.cost, why)
        self.doomed.count(page.name, file)
        return file

    def doom_temporary(self, path: str, nbytes: int) -> None:
        self.doomed.count(path, PendingDeletion(path, None, nbytes))

    def is_indexed(self, name: PageName) -> bool:
        with self.lock:
            return self.has_file(name)
