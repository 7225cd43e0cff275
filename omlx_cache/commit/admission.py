"""How a sequence's pages get into the tiers: room first, then the page; and how much an open
session stages beside the live cache."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from omlx_cache import reasons
from omlx_cache.arrays.mlxio import on_host
from omlx_cache.codecs.codec import Codec
from omlx_cache.codecs.policy import CodecPolicy
from omlx_cache.commit.budgets import Budgets
from omlx_cache.pages.cut import Cutter, PageCut
from omlx_cache.pages.encoding import codecs_for, encode_run, encoded_nbytes, run_bytes
from omlx_cache_storage.calls import deferred
from omlx_cache_storage.eviction.order import Ended, Priority
from omlx_cache_storage.hot_page import Reservation
from omlx_cache_storage.keys import KeyChain
from omlx_cache_storage.measures import Counters
from omlx_cache_storage.page import PAGED, Page, PageId, PageMeta
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


class Planned(NamedTuple):
    meta: PageMeta
    cut: PageCut


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
        chain: KeyChain,
        policy: CodecPolicy,
        budgets: Budgets,
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
        self.chain = chain
        # None: every page stays as it is.
        self._policy = None if policy.name == "dense" else policy
        self._budgets = budgets
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

    def lacking(self, ends: Sequence[int]) -> dict[PageId, int]:
        """Return the paged pages that end there and that no tier has. Until the end, also those
        that only the disk has and memory might keep: they were computed again, because that is
        quicker than to read them."""
        in_memory = self._store.retains and not self.finishing
        pages = [PageId(self.chain.key(end), PAGED) for end in ends]
        lacking: dict[PageId, int] = {}
        found = self._store.find_all(pages, here=True)
        for page, end, info in zip(pages, ends, found, strict=True):
            if info is None or (in_memory and not info.in_memory):
                lacking[page] = end
            else:
                self._own.add(page)
        return lacking

    def add(self, cutter: Cutter, run: Sequence[Planned], *, stage: bool = False) -> int:
        """Cut, encode and store pages of one size, each behind the one before it, several at once
        where possible. Return how many until one had no room. With `stage` that one waits in
        staging while the sequence goes on, or is counted as skipped."""
        meta = run[0].meta
        policy = self._policy if meta.held else None
        codecs = codecs_for(meta, policy) if policy and policy.encodes(len(self.chain)) else {}
        nbytes = encoded_nbytes(meta, codecs) if codecs else meta.nbytes
        self._budgets.page(meta.group, meta.held, nbytes)
        most = run_bytes() if codecs or not on_host() else 0
        stored, wanted = 0, len(run)
        while wanted > 1:
            deferred.point()
            room = self._store.admit_run(
                nbytes,
                wanted,
                self._own,
                position=run[stored + wanted - 1].meta.position,
                most=most,
                priority=self._priority,
                prepared=self.prepared,
            )
            if not room:
                # Of large pages the writer's queue may have room for some.
                wanted = wanted // 2 if most else 0
                continue
            with room:
                for page in _made(cutter, run[stored : stored + room.nbytes // nbytes], codecs):
                    if page.meta.nbytes != nbytes:
                        break
                    self._put(page, room)
                    stored += 1
            # One that turned out larger, and those behind it, are admitted one by one.
            wanted = len(run) - stored if page.meta.nbytes == nbytes else 0
        for one in run[stored:]:
            make = partial(_made, cutter, [one], codecs)
            # A page that is stored encoded is not encoded again, as that could give other bits.
            is_stored = (codecs and self.owns(one.meta.id)) or self._add_one(
                nbytes, one.meta, make, stage
            )
            # One that the disk has need not be in memory.
            if not (is_stored or (not stage and self.owns(one.meta.id))):
                break
            stored += 1
        return stored

    def _add_one(
        self, nbytes: int, meta: PageMeta, make: Callable[[], Sequence[Page]], stage: bool
    ) -> bool:
        """Make and store a page of `nbytes`, or of more when it turns out so; False without room,
        and outside of staging."""
        page, size = None, nbytes
        while room := self._admit(size, meta.position):
            with room:
                page = make()[0] if page is None else page
                if page.meta.nbytes == size:
                    self._put(page, room)
                    return True
                size = page.meta.nbytes
        if page is None and stage and not self.finishing and self.staging.reserve(nbytes):
            page = make()[0]
            if page.meta.nbytes == nbytes:
                self._staged.append(page)
                return True
            self.staging.give_back(nbytes)
        if stage and self.finishing:
            self.give_up([meta.id])
        elif stage:
            self.skipped[reasons.SNAPSHOT_BUDGET] += 1
        return False

    def take_staged(self) -> list[Page]:
        pages, self._staged = sorted(self._staged, key=lambda page: page.meta.position), []
        for page in pages:
            self.staging.give_back(page.meta.nbytes)
        return pages

    def add_made(self, page: Page) -> None:
        """Store a page that waited in staging; without room it goes back there, or is dropped and
        counted at the end."""
        self._add_one(page.meta.nbytes, page.meta, lambda: [page], stage=True)

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
        """Return what was stored of a sequence of `end` tokens, which the budgets learn."""
        self._budgets.sequence(end, lost=self.skipped[reasons.NO_ROOM] > 0)
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


def _made(cutter: Cutter, run: Sequence[Planned], codecs: Mapping[str, Codec]) -> Sequence[Page]:
    if codecs:
        return encode_run(cutter, run, codecs)
    metas, cuts = zip(*run, strict=True)
    return list(map(Page, metas, cutter.payloads(cuts)))
