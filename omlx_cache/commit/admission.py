"""How a sequence's pages get into the tiers: room first, then the page; and the budget that is too
small for a model's pages."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from omlx_cache import reasons
from omlx_cache.arrays.mlxio import on_host
from omlx_cache.codecs.codec import Codec
from omlx_cache.codecs.policy import CodecPolicy
from omlx_cache.commit.live import Staging
from omlx_cache.pages.cut import Cutter, PageCut
from omlx_cache.pages.encoding import codecs_for, encode_run, encoded_nbytes, run_bytes
from omlx_cache.settings import CacheSettings
from omlx_cache.settings.sizes import format_size
from omlx_cache_storage.calls import uninterrupted
from omlx_cache_storage.eviction.order import Ended, Priority
from omlx_cache_storage.hot_page import Reservation
from omlx_cache_storage.keys import KeyChain
from omlx_cache_storage.page import PAGED, Page, PageId, PageMeta
from omlx_cache_storage.tiers import Besides, Tiers

_log = logging.getLogger(__name__)

WRITER_STALL_SECONDS = 60.0
"""How long a commit that waits for the disk sees no page written before it gives up."""
FILE_BYTES = 16 * 1024 + 2 * (4096 + 256)
"""Bytes that a page's file takes beside its payload: header, last block, name, and a shard of its
own, as most of the first pages have."""
DIRECTORY_BYTES = 128 * 1024
"""Bytes that the directories and the ledger take; the tier reserves them for directories that a
write may make. In a large directory the ledger takes a `LEDGER_SHARE`."""
LEDGER_SHARE = 1000
_UNITS = ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB"))


class Fit(NamedTuple):
    """How many tokens of a sequence stay restorable, and the setting that says so; `in_memory` of
    them for as long as nothing else wants the memory."""

    tokens: int
    setting: str
    in_memory: int


class Budgets:
    """Learns a model's page size from its commits, and logs once each budget that is too small for
    a page, or for a sequence that came.

    Mutable by the model's thread: `_block_bytes` (of the pages that every token needs),
    `_point_bytes` (of a restore point's other pages, by group), and `told`, which budgets share:
    the settings that were logged, each with the model. Others may read `fit`.
    """

    def __init__(
        self, settings: CacheSettings, label: str, told: set[tuple[str, str]], tiers: Tiers
    ) -> None:
        self._settings = settings
        self._label = label
        self._told = told
        self._tiers = tiers
        self._block = settings.block_size
        self._memory = settings.hot_bytes or settings.queue_bytes
        self._memory_name = "hot_bytes" if settings.hot_bytes else "queue_bytes"
        self._is_derived = settings.is_derived("cold_bytes")
        self._is_empty = bool(settings.empty_budgets())
        self._block_bytes = 0
        self._point_bytes: dict[str, int] = {}

    def page(self, group: str, tokens: int, nbytes: int) -> None:
        if group == PAGED and tokens == self._block:
            self._block_bytes = nbytes
        elif group != PAGED:
            self._point_bytes[group] = max(nbytes, self._point_bytes.get(group, 0))
        # A page larger than the queue has it for itself.
        if nbytes > self._memory:
            what = f"{tokens} tokens" if tokens else "recurrent state"
            self._tell(
                self._memory_name,
                f"{self._memory_name} ({format_size(self._memory)}) is smaller than one page of "
                f"{self._label} ({format_size(nbytes)} for {what}): none is kept; "
                f"{self._memory_name}={enough(16 * nbytes)} would hold some",
            )

    @property
    def _cold(self) -> int:
        """How far the directory may fill up before this process stops writing."""
        tier, own = self._tiers.cold, self._settings.cold_bytes
        if tier is None:
            return own
        # Other processes and people change the directory's budget; a limit that follows from the
        # free space yields to it.
        return tier.limit_bytes if self._is_derived else min(tier.limit_bytes, own)

    @property
    def token_bytes(self) -> int:
        """The bytes of a token in the pages that every token needs; 0 before one was seen."""
        return self._block_bytes // self._block

    def fit(self) -> Fit | None:
        """Return how much of the longest sequence can be kept; None before a block was seen."""
        if not self._block_bytes:
            return None
        here = self._settings.hot_bytes // self._block_bytes * self._block
        if self._settings.hot_cache_only or self._block_bytes > self._memory:
            return Fit(self._memory // self._block_bytes * self._block, self._memory_name, here)
        blocks = max(0, self._cold - DIRECTORY_BYTES) // (self._block_bytes + FILE_BYTES)
        return Fit(blocks * self._block, "cold_bytes", here)

    def sequence(self, tokens: int, *, lost: bool = False) -> None:
        """Note a sequence that was handed over in full; `lost`: some of it found no room."""
        fit, own = self.fit(), self._settings
        if fit is None or self._is_empty:
            # The store said so when it opened, and for a disk without room no size would help.
            return
        name, size = fit.setting, self._memory if own.hot_cache_only else self._cold
        if tokens // self._block * self._block > fit.tokens:
            known = (
                f"holds about {fit.tokens} tokens of {self._label} "
                f"({format_size(self._block_bytes)} for {self._block})"
            )
        elif lost and self._needed(tokens) > size:
            known = f"is too small for windows and states of {self._label} beside its blocks"
        else:
            return
        needed = enough(self._needed(tokens))
        called, helps = name, f"{name}={needed}"
        if name == "cold_bytes":
            helps = f"{needed}: `omlx-cache doctor` says what budget holds all"
            if size != own.cold_bytes:
                # The directory's budget counts, not this process's own setting.
                called = "the directory's budget"
        self._tell(
            name,
            f"{called} ({format_size(size)}) {known}: of a sequence of {tokens} tokens "
            f"the end is not kept; it needs {helps}",
        )

    def _needed(self, tokens: int) -> int:
        overhead = 0 if self._settings.hot_cache_only else FILE_BYTES
        blocks = -(-tokens // self._block)
        # One each stride, a few around the end; a window may lie in two pages for each.
        points = 2 * (tokens // self._settings.snapshot_stride + 4)
        at_each = sum(nbytes + overhead for nbytes in self._point_bytes.values())
        size = blocks * (self._block_bytes + overhead) + points * at_each
        return size + size // LEDGER_SHARE + DIRECTORY_BYTES if overhead else size

    def _tell(self, setting: str, text: str) -> None:
        if (self._label, setting) not in self._told:
            self._told.add((self._label, setting))
            _log.warning(text)


def enough(nbytes: int) -> str:
    """Return a size of at least so many bytes, short, as a setting takes it: `2.1GiB`."""
    unit, name = next(
        ((2**power, name) for power, name in _UNITS if nbytes >= 2**power), (1024, "KiB")
    )
    tenths = -(-10 * nbytes // unit)
    return f"{tenths / 10:g}{name}" if tenths < 100 else f"{-(-tenths // 10)}{name}"


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
        tiers: Tiers,
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
        self.tiers = tiers
        self.chain = chain
        # None: every page stays as it is.
        self._policy = None if policy.name == "dense" else policy
        self.budgets = budgets
        self.prepared = prepared is not None
        self._deletions = prepared
        self._priority = priority
        self.staging = staging
        self._wait_seconds = wait_seconds
        self.new = set(along)
        self._own = {*own, *self.new}
        self._began_ns = self._stamp = tiers.stamp(priority) if stamp is None else stamp
        self._since_ns = (stamp or 0) if since_ns is None else since_ns
        self._deadline = 0.0
        self._staged: list[Page] = []
        self.finishing = False
        self.skipped: Counter[str] = Counter()
        self.lack = reasons.NO_ROOM
        self.pages = self.nbytes = 0

    def owns(self, page: PageId, held: int = 0) -> bool:
        """True when a tier of this machine has a page with at least `held` tokens, which need not
        be made then: what only others have is stored here too."""
        info = self.tiers.find(page, here=True)
        if info is None or info.held < held:
            return False
        self._own.add(page)
        return True

    def lacking(self, ends: Sequence[int]) -> dict[PageId, int]:
        """Return the paged pages that end there and that no tier has. Until the end, also those
        that only the disk has and memory might keep: they were computed again, because that is
        quicker than to read them."""
        in_memory = self.tiers.retains and not self.finishing
        pages = [PageId(self.chain.key(end), PAGED) for end in ends]
        lacking: dict[PageId, int] = {}
        for page, end, info in zip(pages, ends, self.tiers.find_all(pages, here=True), strict=True):
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
        self.budgets.page(meta.group, meta.held, nbytes)
        most = run_bytes() if codecs or not on_host() else 0
        stored, wanted = 0, len(run)
        while wanted > 1:
            uninterrupted.point()
            room = self.tiers.admit_run(
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
        """Make and store a page of `nbytes`, or of more when it turns out so; False without room in
        memory or staging."""
        with self._admit(nbytes, meta.position) as room:
            is_staged = stage and not (room or self.finishing) and self.staging.reserve(nbytes)
            if not room and not is_staged:
                if stage and self.finishing:
                    self.give_up([meta.id])
                elif stage:
                    self.skipped[reasons.SNAPSHOT_BUDGET] += 1
                return False
            page = make()[0]
            if page.meta.nbytes == nbytes:
                if room:
                    self._put(page, room)
                else:
                    self._staged.append(page)
                return True
            if is_staged:
                self.staging.give_back(nbytes)
        return self.add_made(page, stage=stage)

    def take_staged(self) -> list[Page]:
        pages, self._staged = sorted(self._staged, key=lambda page: page.meta.position), []
        for page in pages:
            self.staging.give_back(page.meta.nbytes)
        return pages

    def add_made(self, page: Page, *, stage: bool = True) -> bool:
        """Store a page that was made, as one that waited in staging: without room it goes back
        there, or is dropped and counted at the end."""
        return self._add_one(page.meta.nbytes, page.meta, lambda: [page], stage)

    def give_up(self, pages: Sequence[PageId]) -> None:
        self.skipped[self.lack] += len(pages)
        if self.lack == reasons.REFUSED:
            self.tiers.refuse(pages, self._began_ns)

    def finish(
        self, pages: Sequence[PageId], fallbacks: Besides, ended: Ended | None = None
    ) -> None:
        """Mark a whole sequence as used together, but not what another has used meanwhile; from now
        on pages wait for room."""
        self.finishing = True
        self._deadline = time.monotonic() + self._wait_seconds
        if not self.prepared:
            self._stamp = self.tiers.stamp(self._priority, ended)
            chain = list(dict.fromkeys((*pages, *self.new)))
            # No access: no second use of pages that it stored a moment ago, and none of the others.
            self.tiers.touch(chain, self._stamp, fallbacks, self._since_ns, used=False)

    def _admit(self, nbytes: int, position: int) -> Reservation:
        """Reserve memory for a page; only at the end, wait for the writer and do without it."""
        queue = True
        while True:
            uninterrupted.point()
            # Asked first: what ends between a refusal and the wait is progress too.
            ended = self.tiers.writes_ended
            room = self.tiers.admit(
                nbytes,
                self._own,
                queue=queue,
                position=position,
                priority=self._priority,
                prepared=self.prepared,
            )
            if room or room.refused or not (queue and self.finishing) or self.prepared:
                break
            began = time.monotonic()
            left = min(WRITER_STALL_SECONDS, self._deadline - began)
            queue = left > 0 and self.tiers.wait_for_writer(left, ended)
            if not queue and time.monotonic() - began >= left:
                # A disk that hangs is waited for once, not again for each page.
                self._deadline = 0.0
        self.lack = reasons.REFUSED if room.refused else reasons.NO_ROOM
        return room

    def _put(self, page: Page, room: Reservation) -> None:
        self._own.add(page.meta.id)
        if self.tiers.put(
            page, room, self._stamp, began_ns=self._began_ns, prepared=self._deletions
        ):
            self.new.add(page.meta.id)
            self.pages += 1
            self.nbytes += page.meta.nbytes


def _made(cutter: Cutter, run: Sequence[Planned], codecs: Mapping[str, Codec]) -> Sequence[Page]:
    if codecs:
        return encode_run(cutter, run, codecs)
    metas, cuts = zip(*run, strict=True)
    return list(map(Page, metas, cutter.payloads(cuts)))
