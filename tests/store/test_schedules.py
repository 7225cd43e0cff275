"""Tiers on real files, whose threads take turns by many schedules."""

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest

from kit.examples import examples, some
from kit.scheduler import Scheduler, explore, explore_all
from kit.storage import Story, check_integrity, files_in, open_cold
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.eviction.keep import Clock
from omlx_cache_storage.format.names import format_name
from omlx_cache_storage.hot_page import WRITE_POLICIES
from omlx_cache_storage.io_threads import DiskThread
from omlx_cache_storage.page import PageId
from omlx_cache_storage.tiers import Tiers

NBYTES = 300
THREE_PAGES = 160 * 1024
"""A disk's budget for so many, beside the files and directories that it needs for them."""
A, B = Story("a", nbytes=NBYTES), Story("b", nbytes=NBYTES)


@pytest.fixture(autouse=True)
def _news_come_on_the_asking_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule has no thread that it does not order; futures are none of its points."""
    monkeypatch.setattr(DiskThread, "ask", lambda self, call, seconds, otherwise: call())


class Rig:
    """Tiers with room for three pages in memory and one in the queue.

    `accepted`: pages that were stored and that nobody asked to delete since, each with the number
    of deletions before; they have to be on the disk after a flush. `allowed`: pages that may be
    there as well.
    """

    def __init__(self, directory: Path, policy: str = "through", cold_bytes: int = 2**30) -> None:
        self.directory = directory
        self.cold = self.peer(cold_bytes)
        self.tiers = Tiers(
            hot_bytes=3 * NBYTES,
            queue_bytes=NBYTES,
            policy=WRITE_POLICIES[policy],
            clock=Clock(),
            cold=self.cold,
            documents=lambda _: {"model": "small"},
        )
        self.waits = True
        self.accepted: dict[PageId, int] = {}
        self.allowed: set[PageId] = set()
        self._evicted: set[PageId] = set()
        self._deletions = 0
        self._deleting = 0

    def peer(self, cold_bytes: int = 2**30) -> ColdTier:
        """Return another tier on the same directory, as a process of its own would have it."""
        return open_cold(self.directory, cold_bytes, clock=Clock())

    def commit(self, story: Story, *numbers: int) -> None:
        """Store pages, root first; wait for the writer where there is no room, if it `waits`."""
        chain = story.ids(*numbers)
        for page in story.pages(*numbers):
            ended = self.tiers.writes_ended
            room = self.tiers.admit(page.meta.nbytes, chain)
            while not room and self.waits and self.tiers.wait_for_writer(60, ended):
                ended = self.tiers.writes_ended
                room = self.tiers.admit(page.meta.nbytes, chain)
            if not room and not self.waits:
                room = self.tiers.admit(page.meta.nbytes, chain, queue=False)
            deleted, deleting = self._deletions, self._deleting
            if not room:
                continue
            taken = self.tiers.put(page, room)
            self.allowed.add(page.meta.id)
            is_accepted = taken and not deleting and deleted == self._deletions
            if is_accepted and page.meta.id not in self._evicted:
                self.accepted[page.meta.id] = deleted
        self.tiers.touch(chain, used=False)

    def delete(self, pages: Iterable[PageId], action: Callable[[], object]) -> None:
        """Have something delete pages: what is stored meanwhile may stay or go, and what was stored
        before may not come back."""
        pages = set(pages)
        self._deletions += 1
        self._deleting += 1
        self._no_longer_accept(pages)
        self.allowed -= pages
        action()
        self._deleting -= 1

    def evict(self, pages: Iterable[PageId], action: Callable[[], object]) -> None:
        """Have something take pages from the disk: memory need not write them again."""
        pages = set(pages)
        self._evicted |= pages
        self._no_longer_accept(pages)
        action()

    def _no_longer_accept(self, pages: set[PageId]) -> None:
        for page in pages:
            self.accepted.pop(page, None)

    def clear(self, story: Story) -> None:
        self.delete(story.ids(1, 2, 3), lambda: self.tiers.clear(story.namespace))

    def forget(self, page: PageId) -> None:
        self.delete([page], lambda: self.tiers.forget(page))

    def flush(self) -> None:
        """Flush, and see whether all of it is on the disk that was accepted before."""
        before, deletions = dict(self.accepted), self._deletions
        done = self.tiers.flush(60)
        # What was deleted and stored again meanwhile may count as stored before.
        assert done or self._deletions > deletions or self._deleting
        # It need not be on the disk: it was stored after the flush began.
        still = before.items() & self.accepted.items()
        assert not done or all(self.cold.info(page) is not None for page, _ in still)

    def check(self) -> None:
        """Assert what holds across the tiers when nobody works."""
        tiers, cold = self.tiers, self.cold
        tiers.refresh()
        assert tiers.writer.settle(60)
        check_integrity(tiers)
        assert tiers.writer.usage().pending_bytes == 0
        files = {file.name for file in files_in(self.directory)}
        assert files == {format_name(entry.stored.name) for entry in cold.listing()}
        assert not list(self.directory.glob(".cleared-*"))
        assert {
            *{held.id for held in tiers.hot.entries()},
            *(entry.page for entry in cold.listing()),
        } <= self.allowed

    def close(self) -> None:
        self.flush()
        self.tiers.stop_writing(60)


@contextmanager
def rig(policy: str = "through", cold_bytes: int = 2**30) -> Iterator[Rig]:
    """Return tiers in a new directory; what they say is checked at the end."""
    directory = Path(mkdtemp())
    try:
        made = Rig(directory, policy, cold_bytes)
        yield made
        if made.tiers.writer is not None and not made.tiers.writer.has_ended:
            made.flush()
            made.check()
            made.close()
    finally:
        shutil.rmtree(directory)


def commits_and_a_flush(scheduler: Scheduler, policy: str) -> None:
    with rig(policy) as made:
        scheduler.together(
            lambda: made.commit(A, 1, 2, 3), lambda: made.commit(B, 1, 2, 3), made.flush
        )


def commits_that_do_not_wait_and_a_flush(scheduler: Scheduler, policy: str) -> None:
    with rig(policy) as made:
        made.waits = False
        scheduler.together(
            lambda: made.commit(A, 1, 2, 3), lambda: made.commit(B, 1, 2, 3), made.flush
        )


def a_commit_and_a_clear(scheduler: Scheduler, policy: str) -> None:
    with rig(policy) as made:
        made.commit(A, 1, 2)
        made.flush()
        scheduler.together(lambda: made.commit(A, 1, 2, 3), lambda: made.clear(A), made.flush)


def a_commit_and_an_eviction_by_budget(scheduler: Scheduler, policy: str) -> None:
    with rig(policy, cold_bytes=THREE_PAGES) as made:
        made.evict([*A.ids(1, 2, 3), *B.ids(1, 2)], lambda: None)
        made.commit(A, 1, 2, 3)
        made.flush()
        scheduler.together(
            lambda: made.commit(B, 1, 2), lambda: made.tiers.touch(A.ids(1, 2, 3)), made.flush
        )
        made.flush()
        usage, refused = made.cold.usage(), made.tiers.writer.usage().refused_pages
        assert usage.evicted_pages + refused >= len(made.allowed) - usage.pages


def a_commit_and_an_eviction_by_request(scheduler: Scheduler, policy: str) -> None:
    with rig(policy) as made:
        made.commit(A, 1)
        made.flush()

        def evict() -> None:
            made.tiers.delete(dict.fromkeys(A.ids(1, 2, 3), 1), disk_only=True)

        scheduler.together(
            lambda: made.commit(A, 1, 2, 3),
            lambda: made.evict(A.ids(1, 2, 3), evict),
            made.flush,
        )


def a_page_forgotten_and_stored_again(scheduler: Scheduler, policy: str) -> None:
    with rig(policy) as made:
        scheduler.together(
            lambda: made.commit(A, 1),
            lambda: made.forget(A.id(1)),
            lambda: made.commit(A, 1, 2),
            made.flush,
        )


def _beside_a_peer(
    scheduler: Scheduler, policy: str, disturb: Callable[[ColdTier], object]
) -> None:
    """Commit a chain while a peer process removes what there is of it."""
    with rig(policy) as made:
        made.commit(A, 1)
        made.flush()
        peer = made.peer()

        def delete() -> None:
            peer.refresh()
            disturb(peer)

        scheduler.together(
            lambda: made.commit(A, 1, 2, 3),
            lambda: made.evict(A.ids(1, 2, 3), delete),
            made.tiers.refresh,
            made.flush,
        )
        peer.close()


def a_peer_deletes(scheduler: Scheduler, policy: str) -> None:
    _beside_a_peer(scheduler, policy, lambda peer: peer.discard(A.ids(1, 2, 3)))


def a_peer_clears(scheduler: Scheduler, policy: str) -> None:
    _beside_a_peer(scheduler, policy, lambda peer: peer.clear(A.namespace))


def a_page_and_its_eviction(scheduler: Scheduler, policy: str) -> None:
    with rig(policy) as made:
        scheduler.together(
            lambda: made.commit(A, 1),
            lambda: made.evict(A.ids(1), lambda: made.tiers.delete({A.id(1): 1}, disk_only=True)),
        )


def a_page_and_its_deletion(scheduler: Scheduler, policy: str) -> None:
    with rig(policy) as made:
        scheduler.together(
            lambda: made.commit(A, 1),
            lambda: made.delete(A.ids(1), lambda: made.tiers.delete({A.id(1): 0}, 60)),
        )


def a_page_and_a_peer(scheduler: Scheduler, policy: str) -> None:
    with rig(policy) as made:
        peer = made.peer()

        def delete() -> None:
            peer.refresh()
            peer.discard(A.ids(1))

        scheduler.together(
            lambda: made.commit(A, 1), lambda: made.evict(A.ids(1), delete), made.tiers.refresh
        )
        peer.close()


def a_page_and_its_clear(scheduler: Scheduler, policy: str) -> None:
    with rig(policy) as made:
        scheduler.together(lambda: made.commit(A, 1), lambda: made.clear(A))


def a_commit_and_the_end(scheduler: Scheduler, policy: str) -> None:
    with rig(policy) as made:
        scheduler.together(lambda: made.commit(A, 1, 2), lambda: made.commit(B, 1), made.close)
        again = made.peer()
        again.check_integrity()
        again.close()


SCENARIOS = (
    commits_and_a_flush,
    commits_that_do_not_wait_and_a_flush,
    a_commit_and_a_clear,
    a_commit_and_an_eviction_by_budget,
    a_commit_and_an_eviction_by_request,
    a_page_forgotten_and_stored_again,
    a_peer_deletes,
    a_peer_clears,
    a_commit_and_the_end,
)


PAGES = (
    a_page_and_its_eviction,
    a_page_and_its_deletion,
    a_page_and_its_clear,
    a_page_and_a_peer,
)
Scenario = Callable[[Scheduler, str], None]


@pytest.mark.parametrize("policy", some(["through", "lazy"], "lazy"))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_schedule_keeps_its_promises(scenario: Scenario, policy: str) -> None:
    explore(lambda scheduler: scenario(scheduler, policy), range(examples(20)))


@pytest.mark.parametrize("scenario", PAGES)
def test_every_schedule_of_one_page_keeps_its_promises(scenario: Scenario) -> None:
    assert explore_all(lambda scheduler: scenario(scheduler, "through"), switches=1) > 50
    explore(lambda scheduler: scenario(scheduler, "through"), range(examples(20, 300)))


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("policy", ["through", "lazy"])
@pytest.mark.parametrize("scenario", [*SCENARIOS, *PAGES])
def test_every_schedule_with_one_more_switch_keeps_its_promises(
    scenario: Scenario, policy: str
) -> None:
    explore_all(lambda scheduler: scenario(scheduler, policy), switches=1)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", PAGES)
def test_every_schedule_of_one_page_with_two_switches_keeps_its_promises(
    scenario: Scenario,
) -> None:
    explore_all(lambda scheduler: scenario(scheduler, "through"), switches=2)
