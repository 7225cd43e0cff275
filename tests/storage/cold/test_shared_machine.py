"""Several tiers on one directory against what the directory holds: any order of what they do."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kit.examples import examples
from kit.storage import Story, disk_usage, expected_payload, files_in, open_cold, read_cold
from kit.storage.told import Told
from kit.units import KIB
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.events import EventLog
from omlx_cache_storage.eviction.keep import SUPERSEDED_NS
from omlx_cache_storage.format.names import LEDGER_FILE

PAGE = 16 * KIB
LIMIT = 700 * KIB
TIERS = 3
STORIES = [Story(name, nbytes=PAGE) for name in ("a", "b")]

tiers = st.integers(0, TIERS - 1)
stories = st.sampled_from(STORIES)
numbers = st.integers(1, 12)


class SharedDirectory(RuleBasedStateMachine):
    """Tiers that write, use, drop and leave; each follows the others, or has yet to."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp()) / "cold"
        self.now = 10**18
        self.tiers: list[ColdTier] = []
        self.told: dict[ColdTier, Told] = {}

    @initialize()
    def open_all(self) -> None:
        self.tiers = [self._open() for _ in range(TIERS)]

    def _open(self) -> ColdTier:
        log = EventLog()
        tier = open_cold(self.directory, LIMIT, events=log)
        self.told[tier] = Told(log, "cold")
        return tier

    def _stamp(self) -> int:
        self.now += 1
        return self.now

    @rule(tier=tiers, story=stories, number=numbers, held=st.sampled_from([8, 16]))
    def write(self, tier: int, story: Story, number: int, held: int) -> None:
        page = story.page(number, held=held)
        result = self.tiers[tier].write(page, self._stamp(), story.document)
        assert result in ("written", "present", "refused")
        if result != "refused":
            info = self.tiers[tier].info(page.meta.id)
            assert info.held >= held

    @rule(tier=tiers, story=stories, number=numbers)
    def use(self, tier: int, story: Story, number: int) -> None:
        self.tiers[tier].touch(story.ids(*range(1, number + 1)), self._stamp())

    @rule(tier=tiers, story=stories, number=numbers)
    def demote(self, tier: int, story: Story, number: int) -> None:
        self.tiers[tier].demote(story.ids(number), SUPERSEDED_NS)

    @rule(tier=tiers, story=stories, number=numbers)
    def drop(self, tier: int, story: Story, number: int) -> None:
        self.tiers[tier].discard(story.ids(number))

    @rule(tier=tiers)
    def settle(self, tier: int) -> None:
        self.tiers[tier].settle()

    @rule(tier=tiers)
    def restart(self, tier: int) -> None:
        self.tiers[tier].close()
        self.tiers[tier] = self._open()

    @rule()
    def lose_the_ledger(self) -> None:
        (self.directory / LEDGER_FILE).unlink(missing_ok=True)

    @rule(tier=tiers, story=stories, number=numbers)
    def read(self, tier: int, story: Story, number: int) -> None:
        one, page = self.tiers[tier], story.id(number)
        one.settle()
        there = [path for path in files_in(self.directory) if path.name.startswith(page.key.hex())]
        assert (one.info(page) is not None) == bool(there)
        if there:
            assert read_cold(one, page) == expected_payload(page, PAGE)

    @invariant()
    def the_budget_holds_by_a_byte(self) -> None:
        if self.tiers:
            assert disk_usage(self.directory) <= LIMIT

    @invariant()
    def events_say_what_each_tier_knows(self) -> None:
        for tier in self.tiers:
            self.told[tier].check(lambda tier=tier: [e.page for e in tier.listing()])

    @rule()
    def all_know_the_same_once_they_have_looked(self) -> None:
        for tier in self.tiers:
            tier.settle()
        used = disk_usage(self.directory)
        known = []
        for tier in self.tiers:
            tier.settle()
            tier.check_integrity()
            assert used <= tier.usage().nbytes <= LIMIT
            known.append({(entry.page, entry.info) for entry in tier.listing()})
        assert known[0] == known[1] == known[2]
        assert len(known[0]) == len(files_in(self.directory))

    def teardown(self) -> None:
        if self.tiers:
            self.all_know_the_same_once_they_have_looked()
        for tier in self.tiers:
            tier.close()
        shutil.rmtree(self.directory.parent)


TestSharedDirectory = SharedDirectory.TestCase
TestSharedDirectory.settings = settings(
    max_examples=examples(20), stateful_step_count=50, deadline=None
)
