"""The pages of a directory on their way to other machines, sent for all of its processes."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import fields, replace

from omlx_cache.settings import CacheSettings, ConfigError
from omlx_cache_daemon.service.keeping import KeepingTier
from omlx_cache_storage.cold import catalog
from omlx_cache_storage.events import Event, EventLog
from omlx_cache_storage.format import planes
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId
from omlx_cache_storage.remote.tier import RemoteTier, open_tier
from omlx_cache_storage.remote.uploads import MOST_PAGES, Uploads
from omlx_cache_storage.stats import RemoteUsage

_log = logging.getLogger(__name__)

EVENTS = 1024
AT_ONCE = 1024
"""Pages that one step is about."""
CANDIDATES = 65_536
"""Pages of which it is not known yet whether somebody uses them again; the newest ones."""
AGAIN_NS = 5 * 1_000_000_000
"""So much later than it was written a page's file is used by another request."""
CLOSE_SECONDS = 1.0


class Feeding:
    """Follows a directory and has its pages sent; `step` and `use` belong to the service's upkeep,
    `usage` and `close` to any thread.

    Machines of another kind have names of their own in the store, and each page's namespace says of
    which kind those are that may use it: there is a tier for each kind that comes up. Mutable, by
    that thread alone: `_kinds` (of namespaces), `_upto` (the last event), `_backlog` (pages that
    were there before), `_unused` (pages, and when they were written, for `reused`). `_lock`, which
    is held over no I/O, guards `_tiers` and `_closed`.
    """

    def __init__(self, tier: KeepingTier, events: EventLog, settings: CacheSettings) -> None:
        self._tier = tier
        self._events = events
        self._settings = settings
        self._lock = threading.Lock()
        self._closed = False
        self._tiers: dict[str, tuple[RemoteTier, Uploads]] = {}
        self._kinds: dict[BlockKey, str] = {}
        self._upto = 0
        self._backlog: Iterator[tuple[BlockKey, PageId]] | None = None
        self._unused: OrderedDict[PageId, int] = OrderedDict()
        self._trouble = ""

    @property
    def is_on(self) -> bool:
        return self._settings.has_remote and self._settings.remote_writes != "off"

    @property
    def _waits_for_use(self) -> bool:
        return self._settings.remote_writes == "reused"

    def use(self, settings: CacheSettings) -> None:
        """Go by other settings, if they differ: all pages are looked at anew."""
        names = [name for name in CacheSettings.model_fields if name.startswith("remote")]
        if all(getattr(settings, name) == getattr(self._settings, name) for name in names):
            return
        self._end(CLOSE_SECONDS)
        self._settings = settings
        self._begin_anew()

    def step(self) -> None:
        """Have sent what is due; returns at once, and raises nothing."""
        if not self.is_on:
            return
        try:
            self._follow()
            self._look_back()
            self._look_for_uses()
            self._trouble = ""
        except (ConfigError, ValueError, ImportError, OSError) as error:
            # What was to be sent meanwhile is found in the directory again.
            self._begin_anew()
            self._say(str(error))

    def _begin_anew(self) -> None:
        self._upto, self._backlog = 0, None
        self._unused.clear()

    def usage(self) -> RemoteUsage | None:
        """Return what the tiers did together, and how the first one's store is; None without."""
        known = [uploads.counted(remote.usage()) for remote, uploads in self._all_tiers()]
        if not known:
            return None
        sums = {
            one.name: sum(getattr(usage, one.name) for usage in known)
            for one in fields(RemoteUsage)
            if one.type is int
        }
        return replace(known[0], **sums)

    def close(self, timeout: float) -> bool:
        """Send no more, for good; within `timeout` seconds. False when something hangs longer."""
        with self._lock:
            self._closed = True
        return self._end(timeout)

    def _end(self, timeout: float) -> bool:
        with self._lock:
            tiers, self._tiers = list(self._tiers.values()), {}
        deadline = time.monotonic() + timeout
        ended = [_ended(*one, deadline) for one in tiers]
        return all(ended)

    def _all_tiers(self) -> list[tuple[RemoteTier, Uploads]]:
        with self._lock:
            return list(self._tiers.values())

    def _follow(self) -> None:
        """Take in what was stored since, or begin with all that there is where not all is known."""
        while True:
            page = self._events.page(self._upto, EVENTS, {"stored", "resynced"})
            first = self._backlog is None
            self._upto = page.upto
            # What was sent is an event too.
            here = [one for one in page.events if one.tier != "remote"]
            if first or page.dropped or any(one.kind == "resynced" for one in here):
                self._upto = self._events.page(None, 1).upto
                self._backlog = self._all()
                return
            if not page.events:
                return
            for event in here:
                self._is_new(*_page_of(event))

    def _look_back(self) -> None:
        """Go on with the pages that were there before, as far as there is room for them."""
        assert self._backlog is not None
        for _ in range(AT_ONCE):
            if any(u.pending > MOST_PAGES // 2 for _, u in self._all_tiers()):
                return
            found = next(self._backlog, None)
            if found is None:
                return
            self._is_new(*found)

    def _all(self) -> Iterator[tuple[BlockKey, PageId]]:
        found = [(e.info.position, e.page, e.namespace) for e in self._tier.listing()]
        found.sort()
        return ((namespace, page) for _, page, namespace in found)

    def _is_new(self, namespace: BlockKey, page: PageId) -> None:
        if not self._waits_for_use:
            self._send(namespace, page)
            return
        if page not in self._unused:
            self._unused[page] = 0
            if len(self._unused) > CANDIDATES:
                self._unused.popitem(last=False)

    def _look_for_uses(self) -> None:
        """Send those pages whose files say that they were used after they were written: that is
        what a server says of uses, and late. Reads what the disk knows of some files, in turn."""
        for _ in range(min(AT_ONCE, len(self._unused))):
            page, written_ns = self._unused.popitem(last=False)
            stored = self._tier.stored(page)
            used_ns = None if stored is None else self._tier.used_on_disk_ns(page)
            if stored is None or used_ns is None:
                continue
            if written_ns and used_ns > written_ns + AGAIN_NS:
                self._send(stored.namespace, page)
            else:
                self._unused[page] = written_ns or used_ns

    def _send(self, namespace: BlockKey, page: PageId) -> None:
        kind = self._kind(namespace)
        uploads = self._to(kind) if kind else None
        if uploads is not None:
            uploads.stored(page)

    def _kind(self, namespace: BlockKey) -> str:
        """Return with machines of which kind a namespace's pages are shared; "" for nobody knows:
        their document is gone or no document of a model's."""
        if namespace not in self._kinds:
            said = catalog.read_namespace(self._tier.directory, namespace).get("architecture")
            if not isinstance(said, str):
                return ""
            self._kinds[namespace] = said
        return self._kinds[namespace]

    def _to(self, kind: str) -> Uploads | None:
        """Return what sends pages to machines of a kind; None once this was closed."""
        with self._lock:
            known, closed = self._tiers.get(kind), self._closed
        if known is not None or closed:
            return None if known is None else known[1]
        options = self._settings.remote_options(kind, has_zstd=planes.available())
        address = self._settings.remote
        assert options is not None
        assert address != "off"
        remote = open_tier(address, options, self._events)
        uploads = Uploads(remote.store, None, self._tier, "all", _nowhere)
        with self._lock:
            closed = self._closed
            if not closed:
                uploads.start()
                self._tiers[kind] = remote, uploads
        if closed:
            remote.close(0.0)
            return None
        return uploads

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            _log.warning("pages are not sent to other machines: %s", trouble)


def _ended(remote: RemoteTier, uploads: Uploads, deadline: float) -> bool:
    # What is left is in the directory, and is found there again.
    uploads.close(max(0.0, deadline - time.monotonic()) / 2)
    return remote.close(max(0.0, deadline - time.monotonic()))


def _page_of(event: Event) -> tuple[BlockKey, PageId]:
    return BlockKey(event.namespace), PageId(BlockKey(event.key), event.group)


def _nowhere(keys: Collection[BlockKey]) -> set[BlockKey]:
    return set()
