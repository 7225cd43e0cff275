"""How a sequence's pages get into the tiers: room first, then the page; and how much an open
session stages beside the live cache."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress

from omlx_cache import reasons
from omlx_cache_storage.eviction.order import Ended, Priority
from omlx_cache_storage.hot_page import Reservation
from omlx_cache_storage.interrupts import deferred
from omlx_cache_storage.measures import Counters
from omlx_cache_storage.page import Page, PageId, PageMeta
from omlx_cache_storage.tiers import Besides, Tiers

WRITER_STALL_SECONDS = 60.0
"""How long a commit that waits for the disk sees no page written before it gives up."""


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What a commit handed to the tiers: `pages` new ones of `nbytes` together.

    `tokens` is the position up to which the sequence was considered; `skipped` counts pages that
    were not stored, by reason. `promoted_pages` is 0: a restore takes pages of the disk into
    memory, a commit none.
    """

    tokens: int
    pages: int
    nbytes: int
    promoted_pages: int
    skipped: Mapping[str, int]

    @classmethod
    def none(cls, reason: str) -> "CommitResult":
        return cls(0, 0, 0, 0, {reason: 1})


class Staging:
    """A session's part of the budget for what cannot be cut later, as the live cache moves on:
    pages without room, and window tokens.

    `release` gives all of it back, also what an error left behind; from any thread, but no
    finalizer, which hands it to `Counters.defer`. `_lock` guards `_closed` and `_sizes`, of what is
    staged.
    """

    def __init__(self, counters: Counters, limit_bytes: int) -> None:
        self._counters = counters
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._closed = False
        self._sizes: list[int] = []

    def reserve(self, nbytes: int) -> bool:
        """Reserve bytes before they are made; False when the budget is spent, and after
        `release`."""
        if not self._counters.take_snapshot(nbytes, self._limit):
            return False
        with self._lock:
            if not self._closed:
                self._sizes.append(nbytes)
                return True
        self._counters.drop_snapshot(nbytes)
        return False

    def give_back(self, nbytes: int) -> None:
        with self._lock:
            if self._closed:
                return
            self._sizes.remove(nbytes)
        self._counters.drop_snapshot(nbytes)

    def release(self) -> None:
        with self._lock:
            self._closed = True
            sizes, self._sizes = self._sizes, []
        for nbytes in sizes:
            self._counters.drop_snapshot(nbytes)


class Admission:
    """Stores the pages of one sequence and counts what it stored. Use it on the model's thread.

    `own` are the pages that the sequence was restored from, used at `stamp`: the whole chain shares
    one stamp, so that its deep end leaves before its root. `along` are pages that another stored of
    it while it grew. Until `finish` nothing waits. Then pages without room wait for the writer,
    `wait_seconds` in all, and while it progresses.

    One that is `prepared`, since memory had seen so many deletions, has no use yet: its pages stay
    at `stamp`, evict only pages that the disk has, reach the disk when they are used, and are not
    stored after another deletion. Others have used those of its pages whose stamp is later than
    `since_ns`, by default `stamp`.

    Mutable: `_own` (the sequence's pages, which make room for each other last), `new` (those that
    it stored), `_staged` (those that wait for room), `finishing`, `lack` (why the latest page
    without room had none), `_stamp`, `_deadline`, `skipped` and the sums.
    """

    def __init__(
        self,
        store: Tiers,
        staging: Staging,
        own: Iterable[PageId],
        stamp: int | None,
        wait_seconds: float,
        along: Iterable[PageId] = (),
        *,
        priority: Priority = "normal",
        since_ns: int | None = None,
        prepared: int | None = None,
    ) -> None:
        self._store = store
        self.prepared = prepared is not None
        self._deletions = prepared
        self._priority = priority
        self.staging = staging
        self._wait_seconds = wait_seconds
        self.new = set(along)
        self._own = {*own, *self.new}
        self._stamp = store.stamp(priority) if stamp is None else stamp
        self._began_ns = self._stamp
        self._since_ns = (stamp or 0) if since_ns is None else since_ns
        self._deadline = 0.0
        self._staged: list[Page] = []
        self.finishing = False
        self.skipped: Counter[str] = Counter()
        self.lack = reasons.NO_ROOM
        self._pages = 0
        self._nbytes = 0

    def owns(self, page: PageId, held: int = 0) -> bool:
        """True when a tier of this machine has a page with at least `held` tokens, which need not
        be made then: what only others have is stored here too."""
        info = self._store.find(page, here=True)
        if info is None or info.held < held:
            return False
        self._own.add(page)
        return True

    def owned(self, pages: Sequence[PageId]) -> list[bool]:
        """Return for each page whether a tier has it. Until the end, False for a page that only the
        disk has and memory might keep: it was computed again, because that is quicker than to read
        it."""
        in_memory = self._store.retains and not self.finishing
        found = self._store.find_all(pages, here=True)
        owned = [info is not None and (not in_memory or info.tier == "hot") for info in found]
        self._own.update(compress(pages, owned))
        return owned

    def add(
        self, nbytes: int, meta: PageMeta, make: Callable[[], Page], *, stage: bool = False
    ) -> bool:
        """Make and store a page of `nbytes`, or of more when it turns out so; False without room.
        With `stage` it then waits in staging while the sequence goes on, or is counted as
        skipped."""
        page, size = None, nbytes
        while room := self._admit(size, meta.position):
            with room:
                page = make() if page is None else page
                if page.meta.nbytes == size:
                    self._put(page, room)
                    return True
                size = page.meta.nbytes
        if page is None and stage and not self.finishing and self.staging.reserve(nbytes):
            page = make()
            if page.meta.nbytes == nbytes:
                self._staged.append(page)
                return True
            self.staging.give_back(nbytes)
        if stage and self.finishing:
            self.give_up([meta.id])
        elif stage:
            self.skipped[reasons.SNAPSHOT_BUDGET] += 1
        return False

    def add_run(
        self,
        nbytes: int,
        metas: Sequence[PageMeta],
        make: Callable[[int], Sequence[Page]],
        *,
        most: int = 0,
    ) -> int:
        """Make and store the first of some pages of `nbytes` each, in one step, `most` bytes
        together or what the store prefers; return how many, up to one that turned out larger. Never
        waits. After 0 each must be added by itself, which can do more for it."""
        deferred.point()
        wanted, room = len(metas), Reservation()
        while wanted and not room:
            position = metas[wanted - 1].position
            room = self._store.admit_run(
                nbytes,
                wanted,
                self._own,
                position=position,
                most=most,
                priority=self._priority,
                prepared=self.prepared,
            )
            # Of large pages the writer's queue may have room for some.
            wanted = wanted // 2 if most else 0
        if not room:
            return 0
        with room:
            pages = make(room.nbytes // nbytes)
            for stored, page in enumerate(pages):
                if page.meta.nbytes != nbytes:
                    return stored
                self._put(page, room)
        return len(pages)

    def take_staged(self) -> list[Page]:
        pages, self._staged = sorted(self._staged, key=lambda page: page.meta.position), []
        for page in pages:
            self.staging.give_back(page.meta.nbytes)
        return pages

    def add_made(self, page: Page) -> None:
        """Store a page that waited in staging; without room it goes back there, or is dropped and
        counted at the end."""
        self.add(page.meta.nbytes, page.meta, lambda: page, stage=True)

    def give_up(self, pages: Sequence[PageId]) -> None:
        self.skipped[self.lack] += len(pages)
        if self.lack == reasons.REFUSED:
            self._store.refuse(pages, self._began_ns)

    def finish(
        self, pages: Sequence[PageId], fallbacks: Besides, ended: Ended | None = None
    ) -> None:
        """Mark a whole sequence as used together, but not what another has used meanwhile; from now
        on pages wait for room."""
        self.finishing = True
        self._deadline = time.monotonic() + self._wait_seconds
        if self.prepared:
            return
        self._stamp = self._store.stamp(self._priority, ended)
        # No access: no second use of the pages that it stored a moment ago, and none of the others.
        self._store.touch(
            list(dict.fromkeys((*pages, *self.new))),
            self._stamp,
            fallbacks,
            self._since_ns,
            used=False,
        )

    def result(self, end: int) -> CommitResult:
        # A plus leaves out what was counted as none.
        return CommitResult(end, self._pages, self._nbytes, 0, dict(+self.skipped))

    def _admit(self, nbytes: int, position: int) -> Reservation:
        """Reserve memory for a page; only at the end, wait for the writer and do without it."""
        admit = partial(
            self._store.admit,
            nbytes,
            self._own,
            position=position,
            priority=self._priority,
            prepared=self.prepared,
        )
        while True:
            deferred.point()
            # Asked first: what ends between a refusal and the wait is progress too.
            ended = self._store.writes_ended
            room = admit()
            if room or room.refused or not self.finishing or self.prepared:
                break
            began = time.monotonic()
            left = min(WRITER_STALL_SECONDS, self._deadline - began)
            if left <= 0 or not self._store.wait_for_writer(left, ended):
                if time.monotonic() - began >= left:
                    # A disk that hangs is waited for once, not again for each page.
                    self._deadline = 0.0
                room = admit(queue=False)
                break
        self.lack = reasons.REFUSED if room.refused else reasons.NO_ROOM
        return room

    def _put(self, page: Page, room: Reservation) -> None:
        self._own.add(page.meta.id)
        if self._store.put(
            page, room, self._stamp, began_ns=self._began_ns, prepared=self._deletions
        ):
            self.new.add(page.meta.id)
            self._pages += 1
            self._nbytes += page.meta.nbytes
