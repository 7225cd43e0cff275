"""Pages on their way to other machines: a queue of names, and one thread behind everything else."""

import logging
import random
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from omlx_cache_storage.errors import PageError
from omlx_cache_storage.interrupts import wait_in_turns
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Page, PageId, PageInfo, Placed
from omlx_cache_storage.remote.engine import RemoteError
from omlx_cache_storage.remote.upload_policy import Branches, UploadPolicy
from omlx_cache_storage.tier import WriteResult

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
BUSY_SECONDS = 70.0
"""After so long a page is tried again that another machine was writing: its mark is gone then."""
PAUSE_SECONDS = 1.0
"""After a failure nothing is sent for about so long."""
CLOSE_SECONDS = 5.0
SENDING = 0.9
"""What is left is sent for so long at most when a process ends, for most of it pages go out."""


class UploadTarget(Protocol):
    """The tier that pages go to."""

    @property
    def resting(self) -> str: ...
    def present(self, pages: Sequence[Placed]) -> Sequence[PageInfo | None]: ...
    def write(self, page: Page) -> WriteResult: ...
    def is_spoilt(self, page: PageId) -> bool: ...


class UploadSource(Protocol):
    """Where pages' bytes come from: those of a page as it is stored, None for one that is gone."""

    def held_by(self, page: PageId) -> "HeldHere | None": ...
    def as_stored(self, page: PageId) -> Page | None: ...


class HeldHere(NamedTuple):
    """What this machine has of a page: the tokens that it holds, and its namespace."""

    namespace: BlockKey
    tokens: int


class UploadCounts(NamedTuple):
    """Pages: still waiting, dropped for want of room or gone meanwhile, and not taken there."""

    pending: int
    dropped: int
    failed: int


class Uploads:
    """Sends pages to a remote store, behind all that requests wait for.

    `stored` and `used` are for the threads that compute: they take no lock and wait for nothing.
    The thread asks what the store has of some pages by one question and sends the others, root
    first; one page's bytes are in memory at a time. Mutable: `_new`, `_chains`, `_flushes` (those
    who wait; all appended to by anybody), `_dropped`; and what the thread alone changes: `_queue`,
    `_added` (how many pages ever came into it), `_queued` (also those that it is at), `_later`
    (with when), `_sent`, `_tries`, `_failed`.
    """

    def __init__(
        self, target: UploadTarget, source: UploadSource, policy: UploadPolicy, branches: Branches
    ) -> None:
        self._target = target
        self._source = source
        self._policy = policy
        self._branches = branches
        self._new: deque[PageId] = deque()
        self._chains: deque[Sequence[PageId]] = deque()
        self._queue: deque[PageId] = deque()
        self._added = 0
        self._queued: set[PageId] = set()
        self._later: deque[tuple[float, PageId]] = deque()
        self._sent: OrderedDict[PageId, float] = OrderedDict()
        self._tries: dict[PageId, int] = {}
        self._dropped = 0
        self._failed = 0
        self._wake = threading.Event()
        self._flushes: deque[threading.Event] = deque()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="omlx-cache-upload", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # For any thread; nothing waits.

    def stored(self, page: PageId) -> None:
        """Note that a page was stored here."""
        if not self._policy.takes_new:
            return
        if self._pending >= MOST_PAGES:
            self._dropped += 1
            return
        self._new.append(page)
        self._told()

    def used(self, chain: Sequence[PageId]) -> None:
        """Note that a request has used pages, root first."""
        if not chain:
            return
        if len(self._chains) >= MOST_CHAINS:
            # Whoever is used so often is used again.
            return
        self._chains.append(tuple(chain))
        self._told()

    def _told(self) -> None:
        if not self._wake.is_set():
            self._wake.set()

    def counts(self) -> UploadCounts:
        return UploadCounts(self._pending, self._dropped, self._failed)

    @property
    def _pending(self) -> int:
        return len(self._new) + len(self._queued) + len(self._later)

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
        self._new.clear()
        self._queue.clear()
        self._queued.clear()
        self._later.clear()
        self._chains.clear()
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
            while waiting and waiting[0][0] <= self._added - len(self._queue):
                waiting.popleft()[1].set()
            if not self._queue:
                self._wake.wait(self._until_due())
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
            for page in self._policy.of_used(self._chains.popleft(), self._branches):
                self._add(page)

        while self._later and self._later[0][0] <= time.monotonic():
            self._add(self._later.popleft()[1])

    def _until_due(self) -> float | None:
        """Return for how long nothing is to be done, None for as long as nobody says anything."""
        return max(0.0, self._later[0][0] - time.monotonic()) if self._later else None

    def _add(self, page: PageId) -> None:
        if page in self._queued:
            return
        sent = self._sent.get(page, 0.0) > time.monotonic()
        if sent and not self._target.is_spoilt(page):
            return
        if len(self._queue) >= MOST_PAGES:
            self._dropped += 1
            self._tries.pop(page, None)
            return
        self._queued.add(page)
        self._queue.append(page)
        self._added += 1

    def _step(self) -> None:
        """Send some pages, unless there are none, or the store is to be left alone."""
        if not self._queue or self._target.resting:
            return
        batch = [self._queue.popleft() for _ in range(min(TOGETHER, len(self._queue)))]
        try:
            self._send(batch)
        except RemoteError as error:
            _log.debug("not sent: %s", error)
            self._pause()

    def _send(self, batch: Sequence[PageId]) -> None:
        """Send those of some pages that the store lacks; what fails is queued again for a while."""
        left = deque(batch)
        try:
            for page, known in self._asked(left):
                if known:
                    self._done(page)
                elif not self._write(page):
                    self._dropped += 1
                    self._forget(page)
                left.popleft()
                if self._ending.is_set():
                    break
        except Exception:
            # A store that is left alone says nothing of this page.
            if left and not self._target.resting:
                self._try_again(left)
            raise
        finally:
            self._queue.extendleft(reversed(left))

    def _asked(self, pages: Sequence[PageId]) -> Iterator[tuple[PageId, bool]]:
        """Yield each page, and whether the store has as much of it; raises RemoteError."""
        here = {page: held for page in pages if (held := self._source.held_by(page)) is not None}
        asked = [Placed(held.namespace, page) for page, held in here.items()]
        there = dict(zip(here, self._target.present(asked) if asked else (), strict=True))
        for page in list(pages):
            found = there.get(page)
            yield page, found is not None and found.held >= here[page].tokens

    def _write(self, page: PageId) -> bool:
        """Send a page; False for one that is gone here. Raises RemoteError."""
        try:
            stored = self._source.as_stored(page)
        except PageError:
            stored = None
        if stored is None:
            return False
        if self._target.write(stored) == "busy":
            self._put_off(page)
        else:
            self._done(page)
        return True

    def _put_off(self, page: PageId) -> None:
        """Try a page again in a while; whoever is writing it may never come to an end."""
        tries = self._tries.get(page, 0) + 1
        self._forget(page)
        if tries >= TRIES or len(self._later) >= MOST_PAGES:
            self._failed += 1
            return
        self._tries[page] = tries
        self._later.append((time.monotonic() + BUSY_SECONDS, page))

    def _try_again(self, left: deque[PageId]) -> None:
        """Count a failure of the first page; give up one that was tried often enough."""
        tries = self._tries.get(left[0], 0) + 1
        self._tries[left[0]] = tries
        if tries >= TRIES:
            self._failed += 1
            self._forget(left.popleft())

    def _done(self, page: PageId) -> None:
        self._forget(page)
        self._sent[page] = time.monotonic() + SENT_SECONDS
        self._sent.move_to_end(page)
        while len(self._sent) > REMEMBERED:
            self._sent.popitem(last=False)

    def _forget(self, page: PageId) -> None:
        self._queued.discard(page)
        self._tries.pop(page, None)
