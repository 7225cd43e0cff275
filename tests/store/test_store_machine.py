"""A store on real files under random use, against a dictionary that knows every byte."""

import errno
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from kit.examples import examples
from kit.storage import (
    FaultyDisk,
    HandClock,
    Story,
    disk_usage,
    expected_payload,
    fetch,
    files_in,
    flip,
    open_store,
    page_state,
    store_page,
)
from kit.storage.told import Told
from kit.units import KIB
from omlx_cache import BlockStore
from omlx_cache.arrays.mlxio import allocate_payload
from omlx_cache_storage.errors import PageError
from omlx_cache_storage.hot_page import PageState
from omlx_cache_storage.page import PageId

HOT = 96 * KIB
QUEUE = 48 * KIB
COLD = 280 * KIB
CALM = 4
"""Commits between two upheavals, so that tiers fill up in between."""
STORIES = [Story("a", nbytes=8 * KIB), Story("b", nbytes=20 * KIB), Story("c", nbytes=500)]
WHICH = st.sampled_from(STORIES)
NUMBERS = st.integers(1, 5)
POLICIES = st.sampled_from(["through", "lazy"])


class StoreMachine(RuleBasedStateMachine):
    """`known` has every page that was ever given to the store; `durable` what flush promised.

    A promise ends with an eviction, a deletion or a file that somebody damaged, nothing else.
    """

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.disk = FaultyDisk()
        self.clock = HandClock()
        self.known: dict[PageId, int] = {}
        self.durable: set[PageId] = set()
        self.damaged: set[str] = set()
        self.commits = 0
        self.store: BlockStore

    @initialize(policy=POLICIES, wait_seconds=st.sampled_from([2, 86400]))
    def start(self, policy: str, wait_seconds: int) -> None:
        self.options = {"write_policy": policy, "commit_wait_seconds": wait_seconds}
        self.store = self._open()

    def _open(self) -> BlockStore:
        store = open_store(
            self.directory / "cold",
            self.disk,
            self.clock,
            hot_bytes=HOT,
            queue_bytes=QUEUE,
            cold_bytes=COLD,
            **self.options,
        )
        self.told = [Told(store.events, "hot"), Told(store.events, "cold")]
        return store

    @rule(story=WHICH)
    def commit_whole(self, story: Story) -> None:
        self.commit(story, 5, 0)

    @rule(story=WHICH, last=NUMBERS, tail=st.integers(0, 3))
    def commit(self, story: Story, last: int, tail: int) -> None:
        self.commits += 1
        pages = story.pages(*range(1, last + 1))
        if tail:
            pages[-1] = story.page(last, tail=tail)
        chain = [page.meta.id for page in pages]
        self.store.touch(chain)
        for page in pages:
            self.known[page.meta.id] = page.meta.nbytes
            store_page(self.store, page, chain)
        self.store.touch(chain, used=False)

    @rule(story=WHICH, number=NUMBERS, tail=st.integers(0, 3))
    def read(self, story: Story, number: int, tail: int) -> None:
        page = story.id(number, tail=tail)
        try:
            found = fetch(self.store, page)
        except PageError:
            return
        if found is None:
            return
        assert found == expected_payload(page, self.known[page])

    @rule(story=WHICH)
    def read_from_disk(self, story: Story) -> None:
        """Read a chain without the help of memory, where the disk has it."""
        for number in range(1, 6):
            if page_state(self.store.hot, story.id(number)) is not PageState.DIRTY:
                self.store.hot.discard([story.id(number)])
            self.read(story, number, 0)

    @rule(story=WHICH, last=NUMBERS)
    def use(self, story: Story, last: int) -> None:
        self.store.touch(story.ids(*range(1, last + 1)))

    @rule(story=WHICH, number=NUMBERS)
    def supersede(self, story: Story, number: int) -> None:
        self.store.demote(story.ids(number))

    @rule(seconds=st.sampled_from([1, 70, 400]))
    def pass_time(self, seconds: float) -> None:
        self.clock.pass_by(seconds)
        self.store.writer.tick()

    @rule(story=WHICH)
    def prefetch(self, story: Story) -> None:
        assert self.store.prefetch(story.ids(1, 2, 3), allocate_payload).wait(30)

    @rule(story=WHICH)
    @precondition(lambda self: self.commits >= CALM)
    def clear(self, story: Story) -> None:
        self.commits = 0
        self.store.clear(story.namespace)
        mine = {story.id(n, tail=t) for n in range(1, 6) for t in range(4)}
        assert all(self.store.find(page) is None for page in mine)
        self.durable -= mine

    @rule(story=WHICH, number=NUMBERS)
    def forget(self, story: Story, number: int) -> None:
        self.store.forget(story.id(number))
        self.durable.discard(story.id(number))

    @rule()
    def flush(self) -> None:
        if self.store.flush(30):
            cold = self.store.cold
            cold.check_integrity()
            self.durable = {e.page for e in cold.listing() if e.page.key.hex() not in self.damaged}
            assert self.store.stats().writer.pending_pages == 0
        else:
            # A page that was dropped while the disk failed is missing until it is stored again.
            assert self.disk.fail or self.store.stats().writer.dropped_pages

    @rule(code=st.sampled_from([errno.ENOSPC, errno.EROFS, errno.EMFILE]))
    @precondition(lambda self: not self.disk.fail)
    def break_disk(self, code: int) -> None:
        for name in ("write", "publish", "open"):
            self.disk.fail[name] = code

    @rule()
    @precondition(lambda self: self.disk.fail)
    def mend_disk(self) -> None:
        # A write that is under way would fail after the disk was mended, as far as one can see.
        assert self.store.writer.flush(30)
        self.disk.fail.clear()

    @rule(choice=st.integers(0, 1000), how=st.sampled_from(["flip", "cut", "remove"]))
    def damage(self, choice: int, how: str) -> None:
        self.store.flush(30)
        paths = files_in(self.directory)
        if not paths:
            return
        path = paths[choice % len(paths)]
        if how == "remove":
            path.unlink()
        elif how == "cut":
            path.write_bytes(path.read_bytes()[:-1])
        else:
            flip(path, choice * 7919 % path.stat().st_size, 1 << choice % 8)
        self.damaged.add(path.name.split("-")[0])
        self.durable = {page for page in self.durable if page.key.hex() not in self.damaged}

    @rule()
    @precondition(lambda self: self.commits >= CALM)
    def remove_directory(self) -> None:
        self.commits = 0
        self.store.flush(30)
        shutil.rmtree(self.directory / "cold", ignore_errors=True)
        self.durable.clear()

    @rule()
    @precondition(lambda self: self.commits >= CALM)
    def restart(self) -> None:
        self.commits = 0
        self.store.close()
        self._check_budgets()
        evicted = self._evicted()
        self.store = self._open()
        evicted += self._evicted()
        if not evicted and not self.disk.fail:
            assert all(page in self.store.cold for page in self.durable)

    def _evicted(self) -> int:
        cold = self.store.stats().cold
        return cold.evicted_pages

    @invariant()
    def budgets_hold(self) -> None:
        if not hasattr(self, "store"):
            return
        self._check_budgets()
        self.store.hot.check_integrity()

    @invariant()
    def events_say_what_is_there(self) -> None:
        if hasattr(self, "store"):
            hot, cold = self.told
            hot.check(lambda: [held.id for held in self.store.hot.entries()])
            cold.check(lambda: [e.page for e in self.store.cold.listing()])

    @invariant()
    def memory_and_disk_agree(self) -> None:
        if hasattr(self, "store") and not self.disk.fail:
            assert not self.store.compare().unbacked

    def _check_budgets(self) -> None:
        stats = self.store.stats()
        assert stats.hot.nbytes <= stats.hot.peak_bytes <= HOT
        assert stats.cold.nbytes <= stats.cold.peak_bytes <= COLD
        assert stats.writer.pending_bytes <= stats.writer.peak_bytes <= QUEUE
        assert disk_usage(self.directory / "cold") <= COLD

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.disk.fail.clear()
            self.store.close()
            assert files_in(self.directory, ".tmp-*") == []
        shutil.rmtree(self.directory)


StoreMachine.TestCase.settings = settings(
    max_examples=examples(30, 300),
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow],
)
TestStoreMachine = StoreMachine.TestCase
