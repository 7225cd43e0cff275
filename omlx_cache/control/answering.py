"""A store, or the service in its place, as commands and the status port ask it."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from omlx_cache.control.listing import Chosen, Disagreement, ListedPage, Pruning
from omlx_cache.control.replies import Identity
from omlx_cache.identity.namespace import Namespace
from omlx_cache.requests.log import Decoder, RequestLog
from omlx_cache.upkeep.directory import Allowance
from omlx_cache_storage.events import EventLog
from omlx_cache_storage.eviction.order import Record
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId, PageInfo
from omlx_cache_storage.stats import Stats


class Answering(Protocol):
    """Any thread may call any of it."""

    @property
    def cold_dir(self) -> str | None:
        """None without a disk."""

    @property
    def requests(self) -> RequestLog:
        """The latest requests."""

    @property
    def events(self) -> EventLog:
        """The log of pages' events."""

    @property
    def decoder(self) -> Decoder | None:
        """Turns tokens into text; None without one."""

    def identity(self) -> Identity:
        """Return who answers."""

    def configuration(self) -> Mapping[str, object]:
        """Return the settings with their origins, and notes."""

    def refresh(self) -> bool:
        """Learn what peer processes changed."""

    def stats(self) -> Stats:
        """Return one picture of everything."""

    def allowance(self) -> Allowance | None:
        """Return what may be written to the disk, None without one."""

    def listing(self) -> list[ListedPage]:
        """Return every page once, in no order."""

    def records(self) -> Mapping[str, Sequence[Record]]:
        """Return the tiers' records of their pages, by tier."""

    def find_all(self, pages: Sequence[PageId]) -> Sequence[PageInfo | None]:
        """None for a page that no tier has."""

    def registered(self) -> Sequence[Namespace]:
        """Return the namespaces that were used, the latest last."""

    def readable_document(self, digest: BlockKey) -> Mapping[str, object]:
        """Return the document of a namespace's digest, {} for an unknown one."""

    def created_ns(self, digest: BlockKey) -> int | None:
        """None for a namespace that is not on the disk."""

    def compare(self) -> Disagreement:
        """Compare memory with the disk."""

    def flush(self, timeout: float) -> bool:
        """Wait until all accepted pages are on the disk; False after `timeout` seconds."""

    def clear(self, namespace: BlockKey, timeout: float) -> int:
        """Delete a namespace's pages, and return how many."""

    def choose(self, asked: Pruning) -> Chosen:
        """Return what `prune` would delete."""

    def prune(self, asked: Pruning, timeout: float) -> Chosen:
        """Delete pages, and return them."""
