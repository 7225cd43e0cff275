"""BlockStore: the tiers, the writer and the control socket that all models of a process share."""

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Self

from omlx_cache.control import ControlError, ControlServer, check_socket, start_control
from omlx_cache.control.operations import handlers
from omlx_cache.identity.namespace import Namespace
from omlx_cache.pages.cold_codec import cold_encoder
from omlx_cache.settings import CacheSettings
from omlx_cache_storage.cold import catalog
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.document import has_fields
from omlx_cache_storage.cold.reader import PageReader
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.errors import PageUnreadable
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.index import Tail
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.listing import ListedPage, list_pages
from omlx_cache_storage.page import Buffer, Page, PageId, PageInfo, PageMeta
from omlx_cache_storage.prefetch import Prefetch, start_prefetch
from omlx_cache_storage.recency import Clock
from omlx_cache_storage.stats import Counters, Stats
from omlx_cache_storage.writer import Writer

_log = logging.getLogger(__name__)

READ_THREADS = 4
CLOSE_SECONDS = 30.0
PROGRESS_SECONDS = 60.0


class BlockStore:
    """Keeps pages for every model of the process, within the budgets of its settings.

    Opens the cold directory and starts the writer and control threads; `close`, or leaving the
    `with` block, writes what is pending and ends them. Any thread may call any method; only
    `flush`, `close` and `reading` wait for a disk. Raises ConfigError for bad settings only: a
    directory or socket that cannot be had is logged and shown in `stats`.

    Mutable: `_namespaces` and `_labels` by `_lock`; `_closed` is written once. The tiers, the
    writer and the counters guard themselves.
    """

    def __init__(
        self,
        settings: CacheSettings | None = None,
        *,
        name: str = "",
        filesystem: FileSystem | None = None,
    ) -> None:
        if settings is not None and not isinstance(settings, CacheSettings):
            raise TypeError(
                f"settings must be CacheSettings(...), not {type(settings).__name__}: "
                'BlockStore(CacheSettings(hot_bytes="4GiB"))'
            )
        self.settings = settings or CacheSettings()
        check_socket(self.settings.socket)
        self.name = name
        self.counters = Counters()
        self.started = time.monotonic()
        self._lock = threading.Lock()
        self._namespaces: dict[BlockKey, Namespace] = {}
        self._labels: list[str] = []
        self._closed = False
        self._clock = Clock()
        s = self.settings
        self.hot = HotTier(
            s.hot_bytes or s.queue_bytes,
            keep_dirty=s.write_policy == "back" and not s.hot_cache_only,
            retain=s.hot_bytes > 0,
            clock=self._clock,
        )
        self.cold: ColdTier | None = None
        self.writer: Writer | None = None
        if not s.hot_cache_only:
            self.cold, self.writer = self._open_cold(filesystem or FileSystem())
        self.read_pool = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="omlx-cache-read")
        self._prefetch_pool = ThreadPoolExecutor(1, thread_name_prefix="omlx-cache-prefetch")
        self._control = self._start_control()
        _open_stores.add(self)

    def _open_cold(self, fs: FileSystem) -> tuple[ColdTier, Writer]:
        s = self.settings
        cold = ColdTier(
            s.cold_dir,
            s.cold_bytes,
            min_free_bytes=s.min_free_bytes,
            durability=s.durability,
            fs=fs,
            clock=self._clock,
            encode=cold_encoder(s.cold_codec, s.min_quantize_tokens),
        )
        cold.open(s.cold_budget)
        queue = min(s.queue_bytes, self.hot.limit_bytes)
        writer = Writer(self.hot, cold, queue, self.document)
        writer.start()
        return cold, writer

    def _start_control(self) -> ControlServer | None:
        try:
            return start_control(self.settings.socket, handlers(self))
        except (ControlError, OSError) as error:
            _log.warning("no control socket: %s", error)
            return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        return self._closed

    def register(self, namespace: Namespace) -> None:
        """Remember what a namespace's digest was made from, for its document on the disk."""
        with self._lock:
            self._namespaces[namespace.digest] = namespace

    def add_label(self, label: str) -> None:
        """Name a model for people: `omlx-cache ps` shows it."""
        with self._lock:
            if label not in self._labels:
                self._labels.append(label)

    @property
    def labels(self) -> list[str]:
        with self._lock:
            return list(self._labels)

    def document(self, digest: BlockKey) -> dict[str, object]:
        """Return a namespace's document, {} for one that this process never used."""
        with self._lock:
            namespace = self._namespaces.get(digest)
            return {} if namespace is None else dict(namespace.document)

    def readable_document(self, digest: BlockKey) -> dict[str, object]:
        """Return a namespace's document, from its directory for one of another process; for people.

        Reads a file.
        """
        known = self.document(digest)
        if known or self.cold is None:
            return known
        return catalog.read_namespace(self.settings.cold_dir, digest)

    @property
    def cold_dir(self) -> str | None:
        """Where page files lie; None in hot_cache_only mode."""
        return None if self.cold is None else str(self.settings.cold_dir)

    def listing(self) -> list[ListedPage]:
        """Return every page of both tiers once, in no order; takes each lock briefly."""
        return list_pages(self.hot.entries(), self.cold.listing() if self.cold is not None else ())

    def find(self, page: PageId) -> PageInfo | None:
        """Return where a page lies, the tier that holds more of it first; reads nothing."""
        if self._closed:
            return None
        hot = self.hot.info(page)
        cold = self.cold.info(page) if self.cold is not None else None
        if hot is None or (cold is not None and cold.held > hot.held):
            return cold
        return hot

    def tails(self, parent: BlockKey) -> set[Tail]:
        """Return the pages that may end inside the block after a boundary."""
        found = self.hot.tails(parent)
        return found | self.cold.tails(parent) if self.cold is not None else found

    def reading(self, page: PageId) -> AbstractContextManager[PageReader]:
        """Open a cold page; raises PageError inside the `with` statement."""
        if self.cold is None:
            raise PageUnreadable("there is no cold tier")
        return self.cold.reading(page)

    def meta(self, page: PageId) -> PageMeta:
        """Return a page's description, from memory or from its file's header; raises PageError."""
        held = self.hot.get(page)
        if held is not None:
            return held.meta
        with self.reading(page) as reader:
            return reader.meta

    def admit(self, nbytes: int, keep: Collection[PageId]) -> bool:
        """Reserve hot bytes for a page about to be made; `put` or `hot.release` must follow.

        Evicts others but those in `keep`. Waits for the writer only with `queue_full=wait`, and for
        nothing while the disk refuses writes: pages that only memory has are then evicted like
        others.
        """
        if self._closed:
            return False
        while True:
            granted, dirty = self.hot.reserve(nbytes, keep)
            if granted or self.writer is None:
                return granted
            if self.cold is not None and self.cold.refuses_writes:
                return self.hot.reserve(nbytes, keep, give_up_dirty=True).granted
            for page in dirty:
                self._offer(page, wait=False)
            if self.settings.queue_full != "wait" or nbytes > self.hot.limit_bytes:
                return False
            if not self.writer.wait_for_progress(PROGRESS_SECONDS):
                return False

    def put(self, page: Page) -> bool:
        """Take an admitted page; queue it for the disk as the write policy says.

        False when the disk had it already, so that it only came back into memory, or when
        another thread was faster.
        """
        on_disk = self._is_cold(page.meta)
        taken = self.hot.put(page, dirty=self.cold is not None and not on_disk)
        if on_disk or not taken:
            return False
        self.counters.add(stored_pages=1, stored_bytes=page.meta.nbytes)
        if self.cold is None:
            return True
        if self.settings.write_policy == "through":
            self._offer(page.meta.id, wait=self.settings.queue_full == "wait")
        elif self.settings.write_policy == "back":
            for dirty in self.hot.dirty(beyond_bytes=self.hot.limit_bytes // 2):
                self._offer(dirty, wait=False)
        return True

    def keep(self, page: Page) -> None:
        """Take a page that was read from the disk into the hot tier, if there is room."""
        if self.hot.info(page.meta.id) is None and self.admit(page.meta.nbytes, ()):
            self.hot.put(page, dirty=False)

    def arrange(self, chain: Sequence[PageId]) -> None:
        """Put the pages of a chain at the end of both tiers' eviction order, the root last."""
        stamp = self._clock.now()
        self.hot.touch(chain, stamp)
        if self.cold is not None:
            self.cold.touch(chain, stamp)

    def touch(self, chain: Sequence[PageId]) -> None:
        """Mark the pages of a chain as used again: `arrange`, and what the write policy does."""
        self.arrange(chain)
        if self.cold is None:
            return
        if self.settings.write_policy != "back":
            for page in chain:
                if self.hot.is_dirty(page):
                    self._offer(page, wait=False)

    def demote(self, pages: Iterable[PageId]) -> None:
        """Make pages the first to be evicted in both tiers."""
        pages = list(pages)
        stamp = self._clock.superseded()
        self.hot.demote(pages, stamp)
        if self.cold is not None:
            self.cold.demote(pages, stamp)

    def shrink_hot(self, nbytes: int) -> bool:
        """Evict from memory until it holds at most `nbytes`; False when pages are in use.

        Then it evicts what it can: half of the excess, a quarter, and so on.
        """
        excess = self.hot.usage().nbytes - nbytes
        wanted = excess
        while wanted > 0:
            room = self.hot.limit_bytes - self.hot.usage().nbytes + wanted
            if self.hot.reserve(room).granted:
                self.hot.release(room)
                return wanted == excess
            wanted //= 2
        return excess <= 0

    def forget(self, page: PageId) -> None:
        """Drop a page that proved useless from both tiers."""
        self.hot.discard(page)
        if self.cold is not None:
            self.cold.discard([page])

    def prefetch(self, pages: Sequence[PageId], allocate: Callable[[int], Buffer]) -> Prefetch:
        """Begin to read cold pages into the hot tier, in order, on a thread of the store's own."""
        return start_prefetch(self._prefetch_pool, self.hot, self.cold, pages, allocate)

    def namespaces(self, parts: Mapping[str, object]) -> list[BlockKey]:
        """Return the namespaces whose documents have these fields, those on the disk included."""
        with self._lock:
            known = {digest: n.document for digest, n in self._namespaces.items()}
        if self.cold is not None:
            for info in catalog.namespaces(self.settings.cold_dir):
                known.setdefault(BlockKey(bytes.fromhex(info.digest)), info.document)
        return [digest for digest, document in known.items() if has_fields(document, parts)]

    def clear(self, namespace: BlockKey, timeout: float = CLOSE_SECONDS) -> int:
        """Delete every page of a namespace and return how many there were; waits for the disk."""
        doomed = {e.meta.id for e in self.hot.entries() if e.meta.namespace == namespace}
        for page in doomed:
            self.hot.discard(page)
        if self.cold is None or self.writer is None:
            return len(doomed)
        # What is being written now would appear after the deletion.
        self.writer.flush(timeout)
        on_disk = {e.page for e in self.cold.listing() if e.namespace == namespace}
        self.cold.discard(on_disk)
        return len(doomed | on_disk)

    def flush(self, timeout: float | None = CLOSE_SECONDS) -> bool:
        """Block until nothing is pending: True means that all accepted pages are durable.

        Pages that `second_touch` holds back are not pending, nor is one larger than the queue.
        False after `timeout` seconds, or when the disk refused a page.
        """
        if self.writer is None:
            return True
        deadline = None if timeout is None else time.monotonic() + timeout
        retried = False
        while True:
            failed = self.writer.usage().failed_pages
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self.writer.flush(remaining):
                return False
            refused = self.writer.usage().failed_pages > failed
            left = self._unwritten()
            if not left or (refused and retried):
                return not left and not refused
            retried = True
            if not self._offer_some(left):
                return False

    def _unwritten(self) -> list[PageId]:
        """Return the pages that a flush must offer again: dropped or refused ones that fit."""
        if self.writer is None or self.settings.write_policy == "second_touch":
            return []
        limit = self.writer.limit_bytes
        infos = [(page, self.hot.info(page)) for page in self.hot.dirty()]
        return [page for page, info in infos if info is not None and info.nbytes <= limit]

    def _offer_some(self, pages: Sequence[PageId]) -> bool:
        """Queue pages until the queue is full; False when it took none."""
        for count, page in enumerate(pages):
            if not self._offer(page, wait=False):
                return count > 0
        return True

    def stats(self) -> Stats:
        """Return one immutable picture of everything; takes each lock briefly."""
        return Stats(
            uptime_seconds=time.monotonic() - self.started,
            hot=self.hot.usage(),
            cold=None if self.cold is None else self.cold.usage(),
            writer=None if self.writer is None else self.writer.usage(),
            requests=self.counters.requests(),
            snapshots=self.counters.snapshots(self.settings.snapshot_bytes),
        )

    def close(self, timeout: float = CLOSE_SECONDS) -> bool:
        """Write what is pending, end the threads, remove the socket, free the hot tier.

        Idempotent. False when `timeout` seconds were not enough to write everything.
        """
        with self._lock:
            if self._closed:
                return True
            self._closed = True
        _open_stores.discard(self)
        clean = self.flush(timeout)
        if self._control is not None:
            self._control.close()
        if self.writer is not None:
            clean = self.writer.stop(timeout if clean else 1.0) and clean
        self._prefetch_pool.shutdown(wait=True, cancel_futures=True)
        self.read_pool.shutdown(wait=True, cancel_futures=True)
        for entry in self.hot.entries():
            self.hot.discard(entry.meta.id)
        return clean

    def identity(self) -> Mapping[str, object]:
        """Return who this store is, for `omlx-cache ping`."""
        return {"pid": os.getpid(), "name": self.name, "uptime_s": time.monotonic() - self.started}

    def _is_cold(self, meta: PageMeta) -> bool:
        stored = self.cold.info(meta.id) if self.cold is not None else None
        return stored is not None and stored.held >= meta.held

    def _offer(self, page: PageId, *, wait: bool) -> bool:
        held = self.hot.get(page)
        if held is None or self.writer is None:
            return False
        return self.writer.offer(page, held.meta.nbytes, wait=wait)


_open_stores: "weakref.WeakSet[BlockStore]" = weakref.WeakSet()


def _close_all() -> None:
    """Write what open stores have pending when the interpreter ends without closing them."""
    for store in list(_open_stores):
        store.close()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_open_stores.clear)
