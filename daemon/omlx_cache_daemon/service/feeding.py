"""The pages of a directory on their way to other machines, sent for all of its processes."""

import logging
import time
from collections.abc import Iterator
from functools import reduce
from itertools import islice

from omlx_cache.settings import CacheSettings, ConfigError
from omlx_cache_daemon.figures import added_up
from omlx_cache_daemon.service.keeping import KeepingTier
from omlx_cache_storage.cold import catalog
from omlx_cache_storage.events import EventLog
from omlx_cache_storage.format import packing
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId
from omlx_cache_storage.remote.tier import RemoteTier, open_tier
from omlx_cache_storage.remote.uploads import MOST_PAGES, Uploads
from omlx_cache_storage.stats import RemoteUsage

_log = logging.getLogger(__name__)

EVENTS = 1024
AT_ONCE = 1024
"""Pages that one step is about."""


class Feeding:
    """Follows a directory and has its pages sent, by the settings that it was made with; belongs to
    the service's upkeep, but for `usage`.

    Machines of another kind have names of their own in the store, and each page's namespace says
    which kind may use it. `_tiers` has a tier for each kind in use. `_upto` is the last event,
    `_backlog` has pages that were there before.
    """

    def __init__(self, tier: KeepingTier, events: EventLog, settings: CacheSettings) -> None:
        self._tier = tier
        self._events = events
        self._settings = settings
        self._tiers: dict[str, tuple[RemoteTier, Uploads]] = {}
        self._kinds: dict[BlockKey, str] = {}
        self._upto = 0
        self._backlog: Iterator[tuple[BlockKey, PageId]] | None = None
        self._trouble = ""

    def goes_by(self, settings: CacheSettings) -> bool:
        """True where other settings say the same of the remote store."""
        names = [name for name in CacheSettings.model_fields if name.startswith("remote")]
        return all(getattr(settings, name) == getattr(self._settings, name) for name in names)

    def step(self) -> None:
        """Have the due pages sent; returns at once, and raises nothing."""
        if "off" in (self._settings.remote, self._settings.remote_writes):
            return
        trouble = ""
        try:
            self._follow()
            self._look_back()
        except (ConfigError, ValueError, ImportError, OSError) as error:
            # Pages that should have been sent meanwhile are found in the directory again.
            trouble, self._backlog = str(error), None
        if trouble not in ("", self._trouble):
            _log.warning("pages are not sent to other machines: %s", trouble)
        self._trouble = trouble

    def usage(self) -> RemoteUsage | None:
        """Return the sum of the tiers' usages; None without any. Any thread may call."""
        known = [uploads.counted(remote.usage()) for remote, uploads in list(self._tiers.values())]
        return reduce(added_up, known) if known else None

    def close(self, timeout: float) -> None:
        """Send no more, within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        for remote, uploads in self._tiers.values():
            # A page that was not sent stays in the directory; the next start finds it there.
            uploads.close(max(0.0, deadline - time.monotonic()) / 2)
            remote.close(max(0.0, deadline - time.monotonic()))

    def _follow(self) -> None:
        """Take in the pages stored since, or begin with all pages where not all are known."""
        while True:
            page = self._events.page(self._upto, EVENTS, {"stored", "resynced"})
            # A sent page is an event too.
            here = [one for one in page.events if one.tier != "remote"]
            is_lost = page.dropped or any(one.kind == "resynced" for one in here)
            if self._backlog is None or is_lost:
                self._upto = self._events.page(None, 1).upto
                every = [(e.info.position, e.page, e.namespace) for e in self._tier.listing()]
                self._backlog = ((namespace, page) for _, page, namespace in sorted(every))
                return
            self._upto = page.upto
            if not page.events:
                return
            for event in here:
                namespace, key = BlockKey(event.namespace), BlockKey(event.key)
                self._send(namespace, PageId(key, event.group))

    def _look_back(self) -> None:
        """Go on with the pages that were there before, as far as there is room for them."""
        for namespace, page in islice(self._backlog or (), AT_ONCE):
            self._send(namespace, page)
            if any(uploads.pending > MOST_PAGES // 2 for _, uploads in self._tiers.values()):
                return

    def _send(self, namespace: BlockKey, page: PageId) -> None:
        """Have a page sent to machines of the kind that its namespace names; not one whose document
        is gone, or names none."""
        if namespace not in self._kinds:
            said = catalog.read_namespace(self._tier.directory, namespace).get("architecture")
            if not isinstance(said, str):
                return
            self._kinds[namespace] = said
        kind = self._kinds[namespace]
        if kind not in self._tiers:
            options = self._settings.remote_options(kind, has_zstd=packing.available())
            address = self._settings.remote
            assert options is not None
            assert address != "off"
            remote = open_tier(address, options, self._events)
            uploads = Uploads(remote.store, None, self._tier, "all", lambda keys: set())
            uploads.start()
            self._tiers[kind] = remote, uploads
        self._tiers[kind][1].stored(page)
