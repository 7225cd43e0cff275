"""What a tier is: the Protocols that hot and cold tiers implement, and a shared or remote one can.

`tests/storage/test_tiers.py` is the suite that every tier passes.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from omlx_cache_storage.eviction.ages import Learned
from omlx_cache_storage.hints import Pinned, Pins
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.measures import Histogram
from omlx_cache_storage.page import Buffer, Known, Page, PageId, PageInfo, PageMeta, Placed, Tail
from omlx_cache_storage.remote.lookups import Asked, Inquiry
from omlx_cache_storage.stats import ColdUsage, RemoteUsage
from omlx_cache_storage.table import PageColumns

WriteResult = Literal["written", "present", "refused", "rationed", "undecodable", "full", "busy"]
"""What `BackingTier.write` did. `present`: the tier had the page. `refused`: the budget is taken by
pages that are worth more. `rationed`: what may be written in a day is spent. `undecodable`:
the page's file is one that only others can decode. `full`: no room can be made, whatever is
evicted."""


class Cleared(NamedTuple):
    """The pages that a namespace had on the disk, and those of them that were deleted by now."""

    found: set[PageId]
    deleted: set[PageId]


class TierEntry(Protocol):
    """A page in a listing. `used_ns` is its recency stamp, `path` its file, None without one."""

    @property
    def page(self) -> PageId: ...
    @property
    def namespace(self) -> BlockKey: ...
    @property
    def info(self) -> PageInfo: ...
    @property
    def used_ns(self) -> int: ...
    @property
    def path(self) -> Path | None: ...


class TierUsage(Protocol):
    """A tier at one moment: `nbytes <= peak_bytes <= limit_bytes`."""

    @property
    def pages(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def peak_bytes(self) -> int: ...
    @property
    def limit_bytes(self) -> int: ...
    @property
    def evicted_pages(self) -> int: ...


class Tier(Protocol):
    """Pages under a budget of bytes. Any thread may call any method; none waits for a disk but
    `discard`.

    Of a chain the deepest page leaves first; a page that holds more of its tokens replaces one that
    holds less, never the other way round.
    """

    def info(self, page: PageId) -> PageInfo | None:
        """Return what is known of a page; reads nothing."""

    def find_all(self, pages: Sequence[PageId]) -> Sequence[Known | None]:
        """Return what is known of each of many pages at this moment; reads nothing."""
        ...

    def tails(self, parent: BlockKey) -> set[Tail]:
        """Return the pages that may end inside the block after a boundary."""
        ...

    def tails_of(self, parents: Sequence[BlockKey]) -> Collection[Tail]:
        """Return the pages that may end inside the blocks after boundaries."""
        ...

    def branches(self, keys: Collection[BlockKey]) -> set[BlockKey]:
        """Return those of a chain's keys that a page follows which is none of them."""
        ...

    @property
    def patience_ns(self) -> int:
        """For how long after its use a page is not given up for a new one."""
        ...

    def touch(
        self,
        chain: Iterable[PageId],
        stamp_ns: int | None = None,
        since_ns: int = 0,
        *,
        used: bool = True,
    ) -> None:
        """Mark pages as used at a stamp of the clock, now by default; absent ones are passed over,
        and those that were used later than that and than `since_ns`. `used`: it is a request that
        wants them, and no later word of one."""

    def note_shift(self, stamp_ns: int, used_ns: int) -> None:
        """Note that what gets a stamp was used at another time than that."""

    def learned(self) -> Learned | None:
        """Return what the tier has learned of uses, None when that is nothing."""
        ...

    def demote(self, pages: Iterable[PageId], stamp_ns: int | None = None) -> None:
        """Make pages the first to be evicted, the deepest of them first."""

    def repin(self, pages: Sequence[PageId]) -> Pinned:
        """Go by what pins say by now of some pages, root first: evict none that they want, as far
        as their share of the tier goes. What comes later is asked for when it comes."""
        ...

    def discard(self, pages: Iterable[PageId]) -> int:
        """Drop pages whatever they are worth; return how many there were."""
        ...

    def entries(self) -> Sequence[TierEntry]:
        """Return every page, the first to be evicted first."""
        ...

    def usage(self) -> TierUsage: ...

    def check_integrity(self) -> None:
        """Assert that byte counts, index and order agree, when nothing is being written."""


class TierView:
    """What the first of some tiers has, to be looked through as the store is. Reads nothing."""

    def __init__(self, tiers: Sequence[Tier]) -> None:
        self.find_all = tiers[0].find_all
        self.tails_of = tiers[0].tails_of
        self._tiers = tiers

    @property
    def limit_bytes(self) -> int:
        """The bytes that a sequence can have there and behind it."""
        return min(tier.usage().limit_bytes for tier in self._tiers)

    @property
    def generation(self) -> int:
        return 0

    def refresh(self) -> bool:
        """False: the tiers are taken as they are."""
        return False

    def hidden(self, pages: Sequence[PageId]) -> Mapping[PageId, str]:
        """Nothing: what cannot be had now is not there."""
        return {}

    @property
    def asks(self) -> bool:
        """False: other machines have no place in what is looked through here."""
        return False

    def ask(self, inquiry: Inquiry, timeout: float | None = None) -> Asked:
        return Asked(news=False)


class OpenPage(Protocol):
    """A stored page whose header was checked."""

    @property
    def meta(self) -> PageMeta: ...

    def read_into(self, pieces: Sequence[Buffer]) -> None:
        """Fill the pieces with the whole payload and verify it; raises PageError."""


class BackingTier(Tier, Protocol):
    """A tier behind memory, which outlives the process. `write`, `settle` and the two
    `take_` methods belong to the writer's thread."""

    @property
    def pins(self) -> Pins:
        """The pins that this process goes by."""
        ...

    @property
    def generation(self) -> int:
        """How often what other processes changed was taken over: counted once it is all there."""
        ...

    def refresh(self) -> bool:
        """Take over what other processes changed; False when that was nothing. Waits for no page,
        raises nothing."""
        ...

    @property
    def is_lost(self) -> bool:
        """True when changes of other processes were missed: `settle` reads all there is again."""
        ...

    def hidden(self, pages: Sequence[PageId]) -> Mapping[PageId, str]:
        """Return those of the pages that are here and that `info` is silent about, with the word
        for why."""
        ...

    def reading(self, page: PageId) -> AbstractContextManager[OpenPage]:
        """Open a page; raises PageError inside the `with` statement. Waits for the disk."""
        ...

    def unanswered(self, page: PageId) -> None:
        """Note a read that whoever wanted it waits for no more; touches no disk."""
        ...

    def write(self, page: Page, time_ns: int, document: Mapping[str, object]) -> WriteResult:
        """Publish a page whole or not at all; raises OSError when the disk refuses."""
        ...

    def impatient(self) -> AbstractContextManager[None]:
        """Let pages push out what was used a short while ago, for as long as the block lasts."""
        ...

    def settle(self) -> None:
        """Record recency, and evict down to the budget; raises nothing."""

    def take_missing(self) -> Sequence[PageId]:
        """Return, once, the pages that were lost or removed without being evicted."""
        ...

    def take_evicted(self) -> Sequence[tuple[PageId, int]]:
        """Return, once, the pages that were evicted, each with its stamp."""
        ...

    def listing(self) -> Sequence[TierEntry]:
        """Return every page, in no order."""
        ...

    def clear(self, namespace: BlockKey, seconds: float) -> Cleared:
        """Delete every page of a namespace, which is served no more whatever the disk does."""
        ...

    def dismiss(self, pages: Iterable[PageId]) -> None:
        """Forget pages, whose files are deleted later; touches no disk."""
        ...

    def timings(self) -> Mapping[str, Histogram]:
        """Return how long pages took to be read and written."""
        ...

    def columns(self) -> PageColumns:
        """Return every page, in no order, without an object for each."""
        ...

    def close(self) -> None:
        """Take no more part in what other processes do there; what is there stays readable."""

    def usage(self) -> ColdUsage: ...

    @property
    def refuses_writes(self) -> bool:
        """True from a failed write until the next one that succeeds."""
        ...


class Expecting(Protocol):
    """Reads that were begun for somebody; `close` ends those that nobody has taken, any number of
    times. Waits for nothing."""

    def close(self) -> None: ...


class RemoteBacking(Protocol):
    """A tier on other machines, as the tiers of this one see it. Any thread may call; nothing waits
    longer than the tier's own deadlines, and nothing but what `reading` opens raises.

    It evicts by itself and knows no recency of this machine's, so it stands behind the other tiers
    and not among them. What is known of it is what it was asked.
    """

    def info(self, page: PageId) -> PageInfo | None: ...
    def find_all(self, pages: Sequence[PageId]) -> Sequence[Known | None]: ...
    def tails_of(self, parents: Sequence[BlockKey]) -> Collection[Tail]: ...
    def hidden(self, pages: Sequence[PageId]) -> Mapping[PageId, str]: ...
    def ask(self, inquiry: Inquiry, timeout: float | None = None) -> Asked:
        """Find out what it has of a chain; waits `timeout` seconds at most, and never longer than
        the tier may; 0 only begins."""
        ...

    def expect(self, pages: Sequence[PageId]) -> Expecting:
        """Begin to read pages in this order, pipelined; returns at once."""
        ...

    def reading(self, page: PageId) -> AbstractContextManager[OpenPage]:
        """Open a page; raises PageError inside the `with` statement. Waits for the network."""
        ...

    def meta(self, page: PageId) -> PageMeta:
        """Return what a page's header says; waits and raises as `reading` does."""
        ...

    def shun(self, page: PageId) -> None:
        """Take a page that proved useless for absent, for a while, if it was read from there;
        deletes nothing."""

    @property
    def resting(self) -> str:
        """Why it is left alone now, "" when it is not."""
        ...

    def present(self, pages: Sequence[Placed]) -> Sequence[PageInfo | None]:
        """Return what it has of each page, by one question; waits, and raises RemoteError."""
        ...

    def write(self, page: Page) -> WriteResult:
        """Publish a page whole or not at all; waits, and raises RemoteError."""
        ...

    def is_spoilt(self, page: PageId) -> bool:
        """Return whether a page was read lately, and was damaged or gone."""
        ...

    def usage(self) -> RemoteUsage: ...
    def timings(self) -> Mapping[str, Histogram]:
        """Return how long look-ups took, and reads of pages."""
        ...

    def close(self, timeout: float) -> bool: ...


class PageUploads(Protocol):
    """What is told of pages that another tier may want; each returns at once."""

    def stored(self, page: PageId) -> None: ...
    def used(self, chain: Sequence[PageId]) -> None: ...
