"""BlockStore: the tiers, the writer and the control socket that all models of a process share."""

import atexit
import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from omlx_cache.arrays.mlxio import architecture
from omlx_cache.control import cold_files
from omlx_cache.control.errors import ControlError
from omlx_cache.control.listing import (
    Chosen,
    Disagreement,
    ListedPage,
    Pruning,
    choose,
    compare,
    list_pages,
    used_by_anybody,
)
from omlx_cache.control.operations import operations
from omlx_cache.control.replies import Identity, WhyReply
from omlx_cache.control.server import ApiServer, check_socket, serve_port, serve_socket
from omlx_cache.flights import Flights
from omlx_cache.identity.namespace import KnownNamespaces
from omlx_cache.package import VERSION, set_level
from omlx_cache.pages.encoding import cold_encoder
from omlx_cache.requests.explainer import Explainer
from omlx_cache.requests.log import Decoder, RequestLog, answer
from omlx_cache.requests.trace import RequestTrace
from omlx_cache.restore.lookup import ReadingGate
from omlx_cache.restore.queue import RestoreQueue
from omlx_cache.settings import CacheSettings, ConfigError
from omlx_cache.settings.derived import (
    history_share,
    memory_to_leave,
    restore_share,
    snapshot_share,
)
from omlx_cache.settings.values import render
from omlx_cache.upkeep.directory import Allowance, ReuseKeeper, allowance, known_budget
from omlx_cache.upkeep.memory import Level, Relief
from omlx_cache.upkeep.thread import StoreParts, upkeep_thread
from omlx_cache_storage.calls import (
    SECONDS,
    is_count,
    is_seconds,
    is_whole,
    uninterrupted,
)
from omlx_cache_storage.cold.catalog import read_namespace
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.files import has_fields
from omlx_cache_storage.cold.small_files import Budget, Reuse, read_pins, read_reuse
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.documents import names_model
from omlx_cache_storage.errors import CacheError, PageUnanswered
from omlx_cache_storage.events import Departures, EventLog
from omlx_cache_storage.eviction.keep import Clock, Keep
from omlx_cache_storage.eviction.order import Record
from omlx_cache_storage.format import packing
from omlx_cache_storage.hot_page import WRITE_POLICIES, Held, PageState
from omlx_cache_storage.io_threads import (
    DiskThread,
    ReaderPool,
    came,
    within,
)
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Buffer, PageId
from omlx_cache_storage.prefetch import Prefetch, Prefetcher, ReadingTiers
from omlx_cache_storage.remote.tier import open_tier
from omlx_cache_storage.remote.uploads import Uploads
from omlx_cache_storage.stats import Stats
from omlx_cache_storage.tiers import FLUSH_SECONDS, Tiers

if TYPE_CHECKING:
    from omlx_cache_storage.remote.tier import RemoteTier

_log = logging.getLogger(__name__)

READ_THREADS = min(8, max(4, (os.cpu_count() or 4) // 2))
"""Enough to keep a disk busy, and to check what comes."""
CLOSE_SECONDS = 30.0
ENDING_SECONDS = 1.0
"""How long a constructor that fails waits for each thread that it had started."""
OPEN_SECONDS = 1.8
"""How long a store waits for its directory to be read; after that it goes on in the background."""
QUERY_SECONDS = 0.5
"""How long a person's query waits for a small file; then it shows the known values."""
RECORD_SECONDS = 5.0
"""How long a choice by last use waits for this process's uses."""


class BlockStore(ReadingTiers, contextlib.AbstractContextManager["BlockStore"]):
    """Keeps pages for every model of the process, within the budgets of its settings.

    Opens the cold directory and starts the writer and control threads; `close`, or leaving the
    `with` block, writes the pending pages and ends them. Any thread may call any method; only
    `flush`, `clear`, `close` and `reading` wait for a disk, and `meta` of a page that is not in
    memory.

    Raises ConfigError for bad settings only: an unavailable directory or socket is logged and shown
    in `stats`. A store that is lost without `close` is closed by a thread of its own. In the child
    of a fork it is closed.

    `_lock` guards `closed` (no page is accepted any more). `labels` has the models' names in order,
    `told` their warnings, each logged once, and `service` a server's description for `omlx-cache
    ps`; each operation on them is atomic. `register` remembers a namespace while the returned
    object lives, and `registered` lists them (`KnownNamespaces`). Any caller may set `decoder`,
    which turns tokens of a model, given by its label, into text for `omlx-cache why`.
    """

    def __init__(
        self,
        settings: CacheSettings | None = None,
        *,
        name: str = "",
        filesystem: FileSystem | None = None,
        clock: Clock | None = None,
        waits: bool = False,
    ) -> None:
        if settings is not None and not isinstance(settings, CacheSettings):
            raise TypeError(
                f"settings must be CacheSettings(...), not {type(settings).__name__}: "
                'BlockStore(CacheSettings(hot_bytes="4GiB"))'
            )
        if not isinstance(name, str):
            raise TypeError(f"name must be text, got {name!r}")
        self.settings = s = settings or CacheSettings()
        check_socket(s.socket)
        if s.is_given("log_level"):
            set_level(s.log_level)
        for note in s.warnings():
            _log.warning(note)
        self.name = name
        self.service: Mapping[str, object] = {}
        # Threads that answer must not keep a store alive that its owner has lost.
        self.operations = operations(weakref.proxy(self))
        self.started = time.monotonic()
        self._lock = threading.Lock()
        self.labels: dict[str, None] = {}
        self.told: set[tuple[str, str]] = set()
        self.closed = False
        self.decoder: Decoder | None = None
        with contextlib.ExitStack() as opened:
            self._build(opened, filesystem or FileSystem(), clock or Clock(), waits=waits)
            opened.pop_all()
        if self.writer is not None:
            self.writer.opened.wait(max(0.0, self.started + OPEN_SECONDS - time.monotonic()))

    def _build(
        self, opened: contextlib.ExitStack, fs: FileSystem, clock: Clock, *, waits: bool
    ) -> None:
        """Start the threads and open the tiers; `opened` gets what ends each of them again."""
        s = self.settings
        departures, events = Departures(), EventLog()
        reuse, cold = Reuse(), None
        self._queries = DiskThread("omlx-cache-queries")
        opened.callback(self._queries.stop)
        self._budget: Budget | None = None
        self._on_disk: dict[BlockKey, Mapping[str, object]] = {}
        # First: of settings that cannot work it says so, and nothing is open yet.
        remote = _open_remote(s, events)
        if remote is not None:
            opened.callback(remote.close, 0.0)
        if not s.hot_cache_only:
            reuse = self._queries.ask(partial(read_reuse, s.cold_dir, fs), QUERY_SECONDS, reuse)
            cold = _cold(s, fs, clock, departures, reuse, events)
            cold.evictor.waits = waits
        namespaces = KnownNamespaces()
        super().__init__(
            hot_bytes=s.hot_bytes,
            queue_bytes=s.queue_bytes,
            policy=WRITE_POLICIES[s.write_policy],
            clock=clock,
            cold=cold,
            departures=departures,
            events=events,
            remote=remote,
            eviction=Keep(reuse.memory),
            documents=namespaces.document,
            opening=partial(_open, cold, s, self._on_disk),
        )
        opened.callback(self.stop_writing, ENDING_SECONDS)
        self._assemble(namespaces, reuse, opened)
        opened.callback(upkeep_thread.forget, self._parts)
        upkeep_thread.keep(self._parts)
        self._finalizer = weakref.finalize(self, _lose, self._parts)
        self._finalizer.atexit = False
        _stores.add(self)

    def _assemble(
        self,
        namespaces: KnownNamespaces,
        reuse: Reuse,
        opened: contextlib.ExitStack,
        *,
        open_: bool = True,
    ) -> None:
        """Make what stands around the tiers; unless `open_` it touches no file and no socket."""
        s, remote = self.settings, self.remote
        self._namespaces = namespaces
        self.register, self.registered = namespaces.add, namespaces.latest
        hot = self.hot
        namespaces.in_memory = lambda: {held.namespace for held in hot.entries()}
        self.trace = RequestTrace(s.trace) if open_ and s.trace != "off" else None
        # Threads of its parts must not keep a store alive that its owner has lost.
        tiers = self.without_owner()
        self.uploads = tiers.uploads = uploads = _uploads(s, tiers)
        if uploads is not None:
            opened.callback(uploads.close, 0.0)
        is_asked = s.socket != "off" or s.status != "off"
        explainer = Explainer(history_share(s.machine) if is_asked else 0, tiers)
        self.requests = RequestLog(self.counters, explainer, trace=self.trace, events=self.events)
        self.flights = Flights()
        self.read_pool = ReaderPool(READ_THREADS, "omlx-cache-read", most=4 * READ_THREADS)
        self.copy_pool = ReaderPool(READ_THREADS, "omlx-cache-copy")
        self.reading_gate = ReadingGate(self.counters.work) if s.worth_reading == "auto" else None
        self.prefetcher = Prefetcher(tiers)
        self.restores = RestoreQueue(restore_share(s.machine))
        self.snapshot_bytes = snapshot_share(s.machine, s.hot_bytes)
        self._relief = Relief(tiers, memory_to_leave(s.machine))
        control = self._start_control() if open_ else None
        if control is not None:
            opened.callback(control.close, ENDING_SECONDS)
        self._parts = StoreParts(
            tiers,
            self._relief,
            (self.read_pool, self.copy_pool, self._queries),
            self.prefetcher,
            self.restores,
            control,
            ReuseKeeper(tiers, s.cold_dir if self.cold else None, reuse),
            remote,
            uploads,
        )

    def after_fork(self) -> None:
        """Become a closed store with locks of its own, in the child of a fork: threads that are not
        here may hold the parent's. The parent's objects, and their memory, stay as they are."""
        _inherited.append(dict(self.__dict__))
        s = self.settings
        super().__init__(
            hot_bytes=s.hot_bytes,
            queue_bytes=s.queue_bytes,
            policy=self._policy,
            clock=Clock(),
            cold=None,
            documents=lambda digest: {},
        )
        self._lock = threading.Lock()
        self.closed = True
        self._queries = DiskThread("omlx-cache-queries")
        self.operations = operations(weakref.proxy(self))
        self._assemble(KnownNamespaces(), Reuse(), contextlib.ExitStack(), open_=False)
        self.hot.close()
        self._parts.ended = True

    def _start_control(self) -> ApiServer | None:
        try:
            return serve_socket(self.settings.socket, self.operations)
        except (ControlError, OSError) as error:
            # A path that is no text would stop the line in every log that is written as UTF-8.
            said = str(error).encode("utf-8", "backslashreplace").decode()
            _log.warning("no control socket: %s", said)
            return None

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_no_more(self) -> None:
        """Evict down to the budget, and let it count for peer processes, from now on. Waits
        `OPEN_SECONDS` at most."""
        if self.cold is not None and self.writer is not None:
            self.cold.evictor.waits = False
            self.writer.settle(OPEN_SECONDS)

    def unanswered(self, page: PageId) -> PageUnanswered:
        """`Tiers.unanswered`; another thread reads instead of the one that hangs."""
        self.read_pool.allow_one_more()
        return super().unanswered(page)

    def readable_document(self, digest: BlockKey) -> dict[str, object]:
        """Return a namespace's document, from its directory where this process does not know it, or
        not the model's name; waits `QUERY_SECONDS` for the file."""
        known = self._namespaces.document(digest) or dict(self._on_disk.get(digest, {}))
        if self.cold is None or names_model(known.get("label")):
            return known
        read = partial(read_namespace, self.settings.cold_dir, digest)
        return self._queries.ask(read, QUERY_SECONDS, known) or known

    def created_ns(self, digest: BlockKey) -> int | None:
        """Return when a namespace came to the disk, None where the disk does not say in
        `QUERY_SECONDS`."""
        if self.cold is None:
            return None
        read = partial(cold_files.created_ns, self.settings.cold_dir, digest)
        return self._queries.ask(read, QUERY_SECONDS, None)

    @property
    def cold_dir(self) -> str | None:
        return None if self.cold is None else str(self.settings.cold_dir)

    def clear(self, namespace: BlockKey, timeout: float = FLUSH_SECONDS) -> int:
        """`Tiers.clear`; also forgets prompts. Ctrl-C ends the wait, and the deletion goes on."""
        self.requests.forget(namespace)
        with uninterrupted:
            clear = partial(super().clear, namespace, timeout)
            return within(clear, "omlx-cache-clear", timeout, 0)

    def choose(self, asked: Pruning) -> Chosen:
        """Return the pages that `prune` would delete, by the uses of all processes; reads the
        directory. Waits `RECORD_SECONDS` at most for this store's own uses to be recorded."""
        if self.writer is not None and asked.by_use:
            self.writer.settle(RECORD_SECONDS)
        pages = self.listing()
        if self.cold is None:
            return choose(pages, asked, self.readable_document, self.pins)
        directory, document_of = self.settings.cold_dir, self.readable_document
        # A directory that cannot be read keeps its pages.
        with contextlib.suppress(OSError):
            pins = cold_files.pins_in(
                directory, read_pins(directory), {page.namespace for page in pages}
            )
            if not asked.by_use:
                return choose(pages, asked, document_of, pins)
            pages = used_by_anybody(pages, cold_files.entries(directory))
            return choose(pages, asked, document_of, pins, cold_files.root_bytes(directory))
        return Chosen([], [], [], [])

    def prune(self, asked: Pruning, timeout: float = FLUSH_SECONDS) -> Chosen:
        """Delete the requested pages from both tiers, and return them.

        Pages of which only the disk has too many stay in memory. Waits `timeout` seconds at most
        for a page that is being written; Ctrl-C as for `clear`. Raises ControlError, and deletes
        nothing, where nothing can be deleted.
        """
        with uninterrupted:
            nothing = Chosen([], [], [], [])
            return within(
                partial(self._prune, asked, timeout), "omlx-cache-prune", timeout, nothing
            )

    def _prune(self, asked: Pruning, timeout: float) -> Chosen:
        if self.cold is not None and not os.access(self.settings.cold_dir, os.W_OK):
            text = "read-only, away, or not yours to write: nothing was deleted"
            raise ControlError("failed", f"{self.cold_dir}: {text}")
        chosen = self.choose(asked)
        whole = {page.page: page.used_ns for page in (*chosen.stale, *chosen.older)}
        if whole:
            self.delete(whole, timeout)
        self.delete({page.page: page.used_ns for page in chosen.surplus}, disk_only=True)
        return chosen

    @uninterrupted
    def why(self, last: int = 1, number: int | None = None) -> WhyReply:
        """Return the latest requests, or the one of a number, and why no more of them was restored;
        as text, if there is a `decoder`. Raises TypeError for what is no number."""
        if not is_count(last) or not (number is None or is_whole(number)):
            raise TypeError(
                "store.why(last=1, number=None) takes whole numbers, "
                f"got last={last!r}, number={number!r}"
            )
        return answer(self.requests, self.decoder, last, number)

    @uninterrupted
    def listing(self) -> list[ListedPage]:
        """Return every page of both tiers once, in no order, pages of peer processes included;
        takes each lock briefly."""
        self.refresh()
        return list_pages(self.hot.entries(), self.cold.listing() if self.cold is not None else ())

    @uninterrupted
    def records(self) -> dict[str, Sequence[Record]]:
        self.refresh()
        cold = () if self.cold is None else self.cold.records()
        return {"hot": self.hot.entries(), "cold": cold}

    def compare(self) -> Disagreement:
        return compare(self)

    @uninterrupted
    def in_memory_only(self) -> list[Held]:
        """Return the pages that memory has, and the disk should have and has not as much of."""
        here = self.hot.entries()
        if self.cold is None:
            return here
        # No request has used a prepared page, so none would miss it.
        used = [held for held in here if held.state is not PageState.PREPARED]
        pairs = zip(used, self.cold.find_all([held.id for held in used]), strict=True)
        return [held for held, info in pairs if info is None or info.held < held.held]

    @uninterrupted
    def prefetch(self, pages: Sequence[PageId], allocate: Callable[[int], Buffer]) -> Prefetch:
        return self.prefetcher.start(pages, allocate)

    def namespaces(self, parts: Mapping[str, object]) -> list[BlockKey]:
        known = dict(self._on_disk)
        known |= {one.digest: one.document for one in self._namespaces.latest()}
        if self.cold is not None:
            read = self.read_pool.submit(cold_files.namespaces, self.settings.cold_dir)
            if came(read):
                for digest, document in read.result().items():
                    known.setdefault(digest, document)
            else:
                _log.warning("%s does not answer: its namespaces are not known", self.cold_dir)
        return [digest for digest, document in known.items() if has_fields(document, parts)]

    @uninterrupted
    def stats(self) -> Stats:
        """Return one immutable picture of everything; takes each lock briefly."""
        remote, uploads = None if self.remote is None else self.remote.usage(), self.uploads
        if remote is not None and uploads is not None:
            remote = uploads.counted(remote)
        return Stats(
            uptime_seconds=time.monotonic() - self.started,
            hot=self.hot.usage(),
            cold=None if self.cold is None else self.cold.usage(),
            writer=None if self.writer is None else self.writer.usage(),
            requests=replace(
                self.counters.requests(), live_sessions=len(self.requests.in_flight())
            ),
            snapshots=self.counters.snapshots(self.snapshot_bytes),
            memory=self._relief.usage,
            histograms=self.events.timings.observed(),
            events=self.events.counts(),
            remote=remote,
        )

    @property
    def is_short_of_memory(self) -> bool:
        return self._relief.usage.level != Level.NORMAL.word

    def metrics(self) -> str:
        """Return this store's metrics in Prometheus' text format. Reads a file."""
        from omlx_cache.status.exposition import exposition

        return exposition(self.operations["processes"]({})).body.decode()

    def serve_status(self, port: int = 0, token: str | None = None) -> ApiServer:
        """Answer `/metrics` and `/status` at a port of 127.0.0.1 (0: any free one) until the store
        is closed; returns the server, whose `url` says where.

        Runs on threads of its own. Raises ConfigError for a bad port or an empty token, OSError for
        a port that cannot be had.
        """
        server = serve_port(self.operations, port, token)
        self.requests.explainer.limit_bytes = history_share(self.settings.machine)
        with self._lock:
            if not self.closed:
                self._parts.status.append(server)
                return server
        server.close()
        raise CacheError("the store is closed: it has no status to serve")

    @uninterrupted
    def close(self, timeout: float = CLOSE_SECONDS) -> bool:
        """Write the pending pages, end the threads, remove the socket, free the hot tier; within
        `timeout` seconds, False when that was not enough to write everything.

        Idempotent, and callable from a handler of a signal: the next call continues an interrupted
        one. A thread that a disk does not answer is left behind, and keeps no process from ending.
        """
        timeout = self.arguments.known("timeout", timeout, is_seconds, CLOSE_SECONDS, SECONDS)
        deadline = time.monotonic() + timeout
        with self._lock:
            if self._parts.ended:
                return True
            self.closed = True
        self.requests.wait_until_told(timeout)
        clean = self._parts.close(max(0.0, deadline - time.monotonic()))
        if self.trace is not None:
            self.trace.close(max(0.0, deadline - time.monotonic()))
        # Only now: one that was interrupted is closed again at the end of the process.
        self._finalizer.detach()
        upkeep_thread.forget(self._parts)
        return clean

    def configuration(self) -> Mapping[str, object]:
        """Return the settings with their origins, and notes; waits `QUERY_SECONDS` for the disk."""
        settings = {name: source.to_dict() for name, source in self.settings.sources().items()}
        unknown = [f"cold_dir: {self.cold_dir} does not answer"]
        notes = self._queries.ask(self.settings.notes, QUERY_SECONDS, unknown)
        allowed = self.allowance()
        if self.cold is not None and allowed is not None:
            least = self.cold.evictor.min_free
            settings["min_free_bytes"] |= {
                "value": least,
                "rendered": render("min_free_bytes", least),
            }
            notes = [*notes, *allowed.notes()]
            settings["cold_bytes"] = allowed.shown(settings["cold_bytes"])
        return {"settings": settings, "notes": notes}

    def allowance(self) -> Allowance | None:
        """Return what this store may write to its directory, None without one. A file is waited for
        `QUERY_SECONDS`."""
        if self.cold is None:
            return None
        read = partial(known_budget, self.settings.cold_dir)
        self._budget = self._queries.ask(read, QUERY_SECONDS, self._budget)
        return allowance(self.settings, self.cold.limit_bytes, self._budget)

    def identity(self) -> Identity:
        return Identity(
            pid=os.getpid(),
            name=self.name,
            uptime_s=time.monotonic() - self.started,
            models=list(self.labels),
            version=VERSION,
            service=dict(self.service),
        )


def _cold(
    s: CacheSettings,
    fs: FileSystem,
    clock: Clock,
    departures: Departures,
    reuse: Reuse,
    events: EventLog,
) -> ColdTier:
    return ColdTier(
        s.cold_dir,
        s.cold_bytes,
        min_free_bytes=s.min_free_bytes,
        durability=s.durability,
        fs=fs,
        clock=clock,
        encode=cold_encoder(s.cold_codec, s.min_quantize_tokens),
        departures=departures,
        daily_bytes=s.daily_write_bytes,
        policy=lambda learned: Keep(learned or reuse.disk),
        derived=s.is_derived("cold_bytes"),
        events=events,
        memory=s.machine.state_dir,
        parents=s.makes_parents,
    )


def _open(
    cold: ColdTier | None, s: CacheSettings, documents: dict[BlockKey, Mapping[str, object]]
) -> None:
    if cold is not None:
        cold_files.open_tier(cold, s)
        with contextlib.suppress(OSError):
            documents.update(cold_files.namespaces(s.cold_dir))


def _open_remote(s: CacheSettings, events: EventLog) -> "RemoteTier | None":
    """Return the tier on other machines, None without one; raises ConfigError for settings that
    cannot work, and nothing for a store that does not answer."""
    options = s.remote_options(architecture(), has_zstd=packing.available())
    if options is None or s.remote == "off":
        return None
    try:
        return open_tier(s.remote, options, events)
    except (ValueError, ImportError, OSError) as error:
        raise ConfigError(f"remote: {error}") from None


def _uploads(s: CacheSettings, tiers: Tiers) -> Uploads | None:
    policy = s.remote_writes
    if tiers.remote is None or policy == "off" or policy == "service":
        return None
    uploads = Uploads(tiers.remote.store, tiers.hot, tiers.cold, policy, tiers.branches)
    uploads.start()
    return uploads


_stores: "weakref.WeakSet[BlockStore]" = weakref.WeakSet()
_inherited: list[object] = []
"""A child's references to its parent's stores: freeing them might wait for a lock of MLX's."""


def _lose(parts: StoreParts) -> None:
    """Have a lost store closed. A finalizer: it may run under any lock; in the child of a fork
    there is nothing to close."""
    if parts.pid == os.getpid():
        upkeep_thread.lost.put(parts)


def _close_all() -> None:
    """Write what open and lost stores have pending when the interpreter ends; within the time that
    one may take."""
    deadline = time.monotonic() + CLOSE_SECONDS
    for store in list(_stores):
        store.close(max(0.0, deadline - time.monotonic()))
    upkeep_thread.close_lost(max(0.0, deadline - time.monotonic()))


atexit.register(_close_all)


def _after_fork() -> None:
    for store in list(_stores):
        store.after_fork()


os.register_at_fork(after_in_child=_after_fork)
