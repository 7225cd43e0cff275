"""Pages on their way to other machines: a queue of names, and one thread behind everything else."""

import logging
import math
import random
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import Literal, NamedTuple

from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.errors import PageError
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.interrupts import wait_in_turns
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Page, PageId, Placed
from omlx_cache_storage.remote.engine import RemoteError
from omlx_cache_storage.remote.tier import RemoteTier

_log = logging.getLogger(__name__)

MOST_PAGES = 65_536
MOST_CHAINS = 256
"""What waits at most: some 20 MB. What comes then is dropped, and counted."""
TOGETHER = 64
"""Pages that one question is about."""
REMEMBERED = 200_000
SENT_SECONDS = 3600.0
"""For so long a page that was sent is taken to be there."""
TRIES = 3
PAUSE_SECONDS = 1.0
"""After a failure nothing is sent for about so long."""
CLOSE_SECONDS = 5.0
SENDING = 0.9
"""What is left is sent for so long at most when a process ends, for most of it pages go out."""

UploadPolicy = Literal["all", "reused", "shared"]
"""Which pages other machines get: `all`, what is used here and was lost there too; `reused`, what a
later request than the one that stored it has used; `shared`, what prompts have in common that go on
differently: the used pages up to the last one from which another sequence leaves."""

Branches = Callable[[Collection[BlockKey]], set[BlockKey]]
"""Says of a chain's keys where other chains leave it."""


class UploadCounts(NamedTuple):
    """Pages: still waiting, dropped for want of room or gone meanwhile, and not taken there."""

    pending: int
    dropped: int
    failed: int


class HeldHere(NamedTuple):
    """What this machine has of a page: the tokens that it holds, and its namespace."""

    namespace: BlockKey
    tokens: int


class OwnPages:
    """What the disk has as it is there, else what memory has. Any thread; waits for the disk."""

    def __init__(self, hot: HotTier | None, cold: ColdTier | None) -> None:
        self._hot = hot
        self._cold = cold

    def held_by(self, page: PageId) -> HeldHere | None:
        """Return what is known of a page, None for one that is gone; reads nothing."""
        stored = None if self._cold is None else self._cold.stored(page)
        if stored is not None:
            return HeldHere(stored.namespace, stored.held)
        held = None if self._hot is None else self._hot.get(page)
        return None if held is None else HeldHere(held.meta.namespace, held.meta.held)

    def as_stored(self, page: PageId) -> Page | None:
        """Return a page, packed if its file is, and checked; None for one that is gone. Raises
        PageError."""
        if self._cold is not None and self._cold.stored(page) is not None:
            with self._cold.reading(page) as reader:
                return reader.read_stored()
        return None if self._hot is None else self._hot.get(page)


class Uploads:
    """Sends pages to a remote store, behind all that requests wait for.

    `stored` and `used` are for the threads that compute: they take no lock and wait for nothing.
    The thread asks what the store has of some pages by one question and sends the others, root
    first; one page's bytes are in memory at a time. Mutable: `_new`, `_chains`, `_flushes` (those
    who wait; all appended to by anybody), `_dropped`; and what the thread alone changes: `_queue`
    (pages in order, each with its number), `_added` (how many pages ever came into it), `_sent`
    (with until when), `_failing` (the page that failed last, and how often in a row), `_failed`.
    """

    def __init__(
        self, target: RemoteTier, source: OwnPages, policy: UploadPolicy, branches: Branches
    ) -> None:
        self._target = target
        self._source = source
        self._policy = policy
        self._branches = branches
        self._new: deque[PageId] = deque()
        self._chains: deque[Sequence[PageId]] = deque()
        self._queue: OrderedDict[PageId, int] = OrderedDict()
        self._added = self._dropped = self._failed = 0
        self._sent: OrderedDict[PageId, float] = OrderedDict()
        self._failing: tuple[PageId | None, int] = (None, 0)
        self._wake = threading.Event()
        self._flushes: deque[threading.Event] = deque()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="omlx-cache-upload", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # For any thread; nothing waits.

    def stored(self, page: PageId) -> None:
        """Note that a page was stored here."""
        if self._policy != "all":
            return
        if self._pending >= MOST_PAGES:
            self._dropped += 1
        else:
            self._new.append(page)
            self._wake.set()

    def used(self, chain: Sequence[PageId]) -> None:
        """Note that a request has used pages, root first. When too many are noted, this is not:
        what is used so often is used again."""
        if chain and len(self._chains) < MOST_CHAINS:
            self._chains.append(tuple(chain))
            self._wake.set()

    def counts(self) -> UploadCounts:
        return UploadCounts(self._pending, self._dropped, self._failed)

    @property
    def _pending(self) -> int:
        return len(self._new) + len(self._queue)

    def flush(self, timeout: float) -> bool:
        """Wait until all that was noted before is there, is another machine's to write, or was
        given up; False after `timeout` seconds, and where the store does not answer."""
        if self._ending.is_set() or not self._thread.is_alive():
            return not self._pending
        done = threading.Event()
        self._flushes.append(done)
        self._wake.set()
        return wait_in_turns(done.wait, timeout) and not self._ending.is_set()

    def close(self, timeout: float) -> bool:
        """Send what is left, and end, within `CLOSE_SECONDS` at most; False when something was
        left, which is counted as dropped. A write that hangs is left behind, and ends when its
        store is closed. May be called again."""
        timeout = min(CLOSE_SECONDS, timeout)
        deadline = time.monotonic() + timeout
        if self._thread.is_alive() and not self._target.resting:
            self.flush(timeout * SENDING)
        self._ending.set()
        self._wake.set()
        if self._thread.ident is not None:
            wait_in_turns(self._joined, max(0.0, deadline - time.monotonic()))
        left = self._pending
        self._dropped += left
        for noted in (self._new, self._queue, self._chains):
            noted.clear()
        return not left and not self._thread.is_alive()

    def _joined(self, timeout: float | None) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # The thread.

    def _run(self) -> None:
        waiting: deque[tuple[int, threading.Event]] = deque()
        while not self._ending.is_set():
            self._wake.clear()
            # Before what was noted is taken in: who waits has noted it before.
            came = [self._flushes.popleft() for _ in range(len(self._flushes))]
            try:
                self._take_in()
                self._step()
            except Exception:
                _log.exception("pages are not sent to other machines")
                self._pause()
            waiting.extend((self._added, done) for done in came)
            first = next(iter(self._queue.values()), math.inf)
            while waiting and waiting[0][0] <= first:
                waiting.popleft()[1].set()
            if not self._queue:
                self._wake.wait()
            elif self._target.resting:
                self._pause()
        for done in (*(done for _, done in waiting), *self._flushes):
            done.set()

    def _pause(self) -> None:
        self._ending.wait(PAUSE_SECONDS * random.uniform(0.5, 1.5))

    def _take_in(self) -> None:
        """Queue what was noted, as the policy wants it."""
        while self._new:
            self._add(self._new.popleft())
        while self._chains:
            for page in self._wanted(self._chains.popleft()):
                self._add(page)

    def _wanted(self, chain: Sequence[PageId]) -> Sequence[PageId]:
        """Return what goes there of a chain that a request has used, root first."""
        if self._policy != "shared":
            return chain
        left = self._branches({page.key for page in chain})
        last = max((at for at, page in enumerate(chain) if page.key in left), default=-1)
        return chain[: last + 1]

    def _add(self, page: PageId) -> None:
        sent = self._sent.get(page, 0.0) > time.monotonic()
        if page in self._queue or (sent and not self._target.is_spoilt(page)):
            return
        if len(self._queue) >= MOST_PAGES:
            self._dropped += 1
            return
        self._queue[page] = self._added
        self._added += 1

    def _step(self) -> None:
        """Send some pages, unless there are none, or the store is left alone."""
        if not self._queue or self._target.resting:
            return
        try:
            self._send(list(islice(self._queue, TOGETHER)))
        except Exception as error:
            # A store that is left alone says nothing of this page.
            if not self._target.resting:
                self._note_failure(next(iter(self._queue)))
            if not isinstance(error, RemoteError):
                raise
            _log.debug("not sent: %s", error)
            self._pause()

    def _send(self, batch: Sequence[PageId]) -> None:
        """Send those of some pages that the store lacks; what fails stays in the queue for a while.
        Raises RemoteError."""
        here = {page: held for page in batch if (held := self._source.held_by(page)) is not None}
        asked = [Placed(held.namespace, page) for page, held in here.items()]
        there = dict(zip(here, self._target.present(asked) if asked else (), strict=True))
        for page in batch:
            found = there.get(page)
            if found is None or found.held < here[page].tokens:
                self._write(page)
            else:
                self._note_sent(page)
            del self._queue[page]
            if self._ending.is_set():
                return

    def _write(self, page: PageId) -> None:
        """Send a page; raises RemoteError. Of one that another machine is writing nothing is
        remembered: it may never come to an end."""
        try:
            stored = self._source.as_stored(page)
        except PageError:
            stored = None
        if stored is None:
            self._dropped += 1
        elif self._target.write(stored) != "busy":
            self._note_sent(page)

    def _note_failure(self, page: PageId) -> None:
        """Count a failure of a page; give up one that was tried often enough."""
        before, tries = self._failing
        self._failing = (page, tries + 1 if page == before else 1)
        if self._failing[1] >= TRIES:
            self._failed += 1
            del self._queue[page]

    def _note_sent(self, page: PageId) -> None:
        self._sent[page] = time.monotonic() + SENT_SECONDS
        self._sent.move_to_end(page)
        while len(self._sent) > REMEMBERED:
            self._sent.popitem(last=False)
