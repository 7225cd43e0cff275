"""What somebody believes a tier to have who reads nothing but its log of events."""

from collections.abc import Callable, Iterable

from omlx_cache_storage.events import EventLog
from omlx_cache_storage.page import PageId

Pages = Callable[[], Iterable[PageId]]


class Told:
    """Follows the events of one tier. Mutable: `_after`, and `_believed`, pages with their
    namespaces, None when the log says that the tier was read anew."""

    def __init__(self, log: EventLog, tier: str) -> None:
        self._log = log
        self._tier = tier
        self._after = 0
        self._believed: dict[tuple[bytes, str], bytes] | None = {}

    def check(self, pages: Pages) -> None:
        """Assert that the events say which pages there are; nothing while they change."""
        self._follow()
        here = {(page.key, page.group) for page in pages()}
        if self._log.page(self._after, 1).events:
            return
        if self._believed is None:
            self._believed = dict.fromkeys(here, b"")
        assert set(self._believed) == here

    def _follow(self) -> None:
        page = self._log.page(self._after, 1_000_000)
        assert page.dropped == 0
        self._after = page.upto
        for event in page.events:
            if event.tier != self._tier:
                continue
            name = event.key, event.group
            if event.kind == "resynced":
                self._believed = None
            elif self._believed is None:
                continue
            elif event.kind == "stored":
                self._believed[name] = event.namespace
            elif event.kind in ("evicted", "removed"):
                del self._believed[name]
            elif event.kind == "cleared":
                self._clear(event.namespace)

    def _clear(self, namespace: bytes) -> None:
        kept = self._believed.items() if namespace else ()
        # Of what was there when the tier was read nobody has said whose it is.
        seen = namespace and b"" not in self._believed.values()
        left = {name: whose for name, whose in kept if whose != namespace}
        self._believed = left if seen or not namespace else None
