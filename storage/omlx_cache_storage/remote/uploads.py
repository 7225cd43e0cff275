"""Pages on their way to other machines: a queue of names, and one thread behind everything else."""

import logging
import math
import random
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Literal

from omlx_cache_storage.calls import wait_in_turns
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.errors import PageError
from omlx_cache_storage.format.names import StoredPage
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.io_threads import ReaderPool
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Page, PageId, PageMeta, Placed
from omlx_cache_storage.remote.engine import RemoteError
from omlx_cache_storage.remote.store import RemoteStore
from omlx_cache_storage.stats import RemoteUsage

_log = logging.getLogger(__name__)

MOST_PAGES = 65_536
MOST_CHAINS = 256
"""Pages and chains that wait at most: some 20 MB. Later ones are dropped, and counted."""
TOGETHER = 64
TRIES = 3
PAUSE_SECONDS = 1.0
"""After a failure nothing is sent for about so long."""
CLOSE_SECONDS = 5.0
SENDING = 0.9
"""Pending pages are sent for so many seconds at most when a process ends; new ones go out for
`SENDING` of that."""

UploadPolicy = Literal["all", "reused", "shared"]
"""The pages that other machines get. `all`: pages that are used here and were missing there.
`reused`: pages that a later request than the storing one has used. `shared`: the common part of
prompts that go on differently, the used pages up to the last one from which another sequence
leaves."""

Branches = Callable[[Collection[BlockKey]], set[BlockKey]]


class Uploads:
    """Sends pages of the disk, else of memory, to a remote store, behind all that requests wait
    for.

    `stored` and `used` are for the threads that compute: they take no lock and wait for nothing.
    The thread asks for some pages in the store by one request and sends the missing ones, root
    first. One page's bytes are in memory at a time. Any thread appends to `_noted` (chains) and
    `_flushes` (waiting callers). The thread's own are `_queue` (pages in order, each with its
    number), `_added` (how many ever came), `_tries` (how often in a row its first page has failed),
    `_failed`.
    """

    def __init__(
        self,
        target: RemoteStore,
        hot: HotTier | None,
        cold: ColdTier | None,
        policy: UploadPolicy,
        branches: Branches,
    ) -> None:
        self._target = target
        self._hot = hot
        self._cold = cold
        self._policy = policy
        self._branches = branches
        self._noted: deque[Sequence[PageId]] = deque()
        self._queue: OrderedDict[PageId, int] = OrderedDict()
        self._added = self._dropped = self._failed = self._tries = 0
        self._wake = threading.Event()
        self._flushes: deque[threading.Event] = deque()
        self._ending = threading.Event()
        self._pool = ReaderPool(1, "omlx-cache-upload")

    def start(self) -> None:
        self._pool.submit(self._run)

    def stored(self, page: PageId) -> None:
        if self._policy != "all":
            return
        if self.pending >= MOST_PAGES:
            self._dropped += 1
        else:
            self._note([page])

    def used(self, chain: Sequence[PageId]) -> None:
        """Note that a request has used pages, root first. When too many are noted, these are not: a
        page with so many uses is used again."""
        if chain and len(self._noted) < MOST_CHAINS:
            self._note(tuple(chain))

    def _note(self, chain: Sequence[PageId]) -> None:
        self._noted.append(chain)
        self._wake.set()

    def counted(self, usage: RemoteUsage) -> RemoteUsage:
        return replace(
            usage,
            pending_pages=self.pending,
            dropped_pages=self._dropped,
            failed_pages=self._failed,
        )

    @property
    def pending(self) -> int:
        return len(self._noted) + len(self._queue)

    def flush(self, timeout: float) -> bool:
        """Wait until each page noted before is in the store, is another machine's to write, or has
        failed for good. False after `timeout` seconds, and where the store does not answer."""
        if self._ending.is_set():
            return not self.pending
        done = threading.Event()
        self._flushes.append(done)
        self._wake.set()
        return wait_in_turns(done.wait, timeout) and not self._ending.is_set()

    def close(self, timeout: float) -> bool:
        """Send the pending pages, and end, within `CLOSE_SECONDS` at most. False when some are
        left: they are counted as dropped. A write that hangs is left behind, and ends when its
        store is closed. May be called again."""
        timeout = min(CLOSE_SECONDS, timeout)
        deadline = time.monotonic() + timeout
        if not self._target.back_off.why:
            self.flush(timeout * SENDING)
        self._ending.set()
        self._wake.set()
        ended = self._pool.stop(max(0.0, deadline - time.monotonic()))
        pages = self.pending
        self._dropped += pages
        self._noted.clear()
        self._queue.clear()
        return not pages and ended

    def _run(self) -> None:
        waiting: deque[tuple[int, threading.Event]] = deque()
        while not self._ending.is_set():
            self._wake.clear()
            # Before the notes are taken in: a caller that waits has noted its pages before.
            came = [self._flushes.popleft() for _ in range(len(self._flushes))]
            try:
                self._take_in()
                if self._queue and not self._target.back_off.why:
                    self._send(list(islice(self._queue, TOGETHER)))
            except Exception as error:
                self._fail(error)
            waiting.extend((self._added, done) for done in came)
            first = next(iter(self._queue.values()), math.inf)
            while waiting and waiting[0][0] <= first:
                waiting.popleft()[1].set()
            if not self._queue:
                self._wake.wait()
            elif self._target.back_off.why:
                self._pause()
        for done in (*(done for _, done in waiting), *self._flushes):
            done.set()

    def _fail(self, error: Exception) -> None:
        if isinstance(error, RemoteError):
            _log.debug("not sent: %s", error)
        else:
            _log.error("pages are not sent to other machines", exc_info=error)
        # A back-off from the store says nothing of this page.
        if self._queue and not self._target.back_off.why:
            self._tries += 1
            if self._tries >= TRIES:
                self._failed += 1
                self._end_first()
        self._pause()

    def _pause(self) -> None:
        self._ending.wait(PAUSE_SECONDS * random.uniform(0.5, 1.5))

    def _take_in(self) -> None:
        while self._noted:
            for page in self._wanted(self._noted.popleft()):
                if page in self._queue:
                    continue
                if len(self._queue) >= MOST_PAGES:
                    self._dropped += 1
                    continue
                self._queue[page] = self._added
                self._added += 1

    def _wanted(self, chain: Sequence[PageId]) -> Sequence[PageId]:
        if self._policy != "shared":
            return chain
        left = self._branches({page.key for page in chain})
        last = max((at for at, page in enumerate(chain) if page.key in left), default=-1)
        return chain[: last + 1]

    def _send(self, batch: Sequence[PageId]) -> None:
        """Send the pages that the store lacks; a failed one stays in the queue for a while. Raises
        RemoteError."""
        here = {page: held for page in batch if (held := self._held(page)) is not None}
        asked = [Placed(held.namespace, page) for page, held in here.items()]
        there = dict(zip(here, self._target.present(asked), strict=True))
        for page in batch:
            found = there.get(page)
            if found is None or found.held < here[page].held:
                self._write(page)
            self._end_first()
            if self._ending.is_set():
                return

    def _end_first(self) -> None:
        self._queue.popitem(last=False)
        self._tries = 0

    def _held(self, page: PageId) -> StoredPage | PageMeta | None:
        stored = None if self._cold is None else self._cold.stored(page)
        if stored is not None or self._hot is None:
            return stored
        held = self._hot.get(page)
        return None if held is None else held.meta

    def _write(self, page: PageId) -> None:
        """Send a page as it is stored here, packed if its file is, unless it is gone or damaged.
        One that another machine is writing is sent again at its next use. Raises RemoteError."""
        stored: Page | None = None
        if self._cold is not None and self._cold.stored(page) is not None:
            with suppress(PageError), self._cold.reading(page) as reader:
                stored = reader.read_stored()
        elif self._hot is not None:
            stored = self._hot.get(page)
        if stored is None:
            self._dropped += 1
        else:
            self._target.write(stored)
