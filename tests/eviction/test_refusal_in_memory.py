"""What was used a short while ago is not given up for what is new; what is refused may pass."""

from eviction.patient import PATIENCE_SECONDS, patient
from hypothesis import settings as examples
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kit.storage import HandClock, Story, end_write, put
from kit.units import KIB
from omlx_cache_storage.eviction.keep import Keep
from omlx_cache_storage.hot import LINGER_NS, PASSING_SHARE, HotTier
from omlx_cache_storage.hot_page import Reservation
from omlx_cache_storage.page import Page

SIZES = (KIB, 2 * KIB, 5 * KIB)
LIMIT = 32 * KIB


def _filled(clock: HandClock, story: Story, pages: int, **options: bool) -> HotTier:
    tier = HotTier(pages * KIB, clock=clock, policy=patient(), **options)
    for number in range(1, pages + 1):
        put(tier, story.page(number), dirty=False, stamp_ns=clock.now())
    return tier


def test_a_page_is_refused_until_the_first_to_leave_is_old_enough() -> None:
    clock, story = HandClock(), Story(nbytes=KIB)
    tier = _filled(clock, story, 4)
    assert tier.reserve(KIB).refused
    clock.pass_by(PATIENCE_SECONDS - 1)
    tier.touch(story.ids(1, 2, 3))
    assert tier.reserve(KIB).refused
    clock.pass_by(2)
    assert tier.reserve(KIB)
    assert tier.reserve(KIB).refused
    assert tier.info(story.id(4)) is None
    tier.check_integrity()


def test_an_eighth_is_set_aside_for_pages_that_pass_and_given_back_after_a_minute() -> None:
    clock, story, other = HandClock(), Story(nbytes=KIB), Story("other", nbytes=KIB)
    tier = _filled(clock, story, 16)
    for number in (1, 2):
        room = tier.reserve(KIB, may_pass=True)
        assert room.passes
        assert tier.put(other.page(number), room, dirty=True)
        tier.queue([other.id(number)])
    assert not tier.reserve(KIB, may_pass=True)
    assert tier.usage().pages == 16
    for page in other.ids(1, 2):
        end_write(tier, page, written=tier.get(page))
        assert tier.info(page) is None
    assert tier.usage().nbytes == 14 * KIB
    # The room is kept for those that pass next.
    assert tier.reserve(KIB).refused
    with tier.reserve(KIB, may_pass=True) as room:
        assert room.passes
    clock.pass_by(LINGER_NS / 1e9 + 1)
    tier.touch(story.ids(*range(1, 17)))
    for number in (3, 4):
        room = tier.reserve(KIB, may_pass=True)
        assert room
        assert not room.passes
        assert tier.put(other.page(number), room, dirty=False, stamp_ns=clock.now())
    assert tier.reserve(KIB).refused
    tier.check_integrity()


class Passing(RuleBasedStateMachine):
    """Pages that stay, pass, are written, dropped and used, in any order and time."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = HandClock()
        self.tier = HotTier(LIMIT, clock=self.clock, policy=patient(), backed=True)
        self.story = Story(blocks=400)
        self.fresh = iter(range(1, 400))
        self.reserved: list[tuple[Page, Reservation]] = []
        self.queued: list[Page] = []

    @rule(size=st.sampled_from(SIZES), may_pass=st.booleans())
    def reserve(self, size: int, may_pass: bool) -> None:
        page = self.story.page(next(self.fresh), nbytes=size)
        before = self.tier.usage()
        room = self.tier.reserve(size, may_pass=may_pass)
        if room:
            self.reserved.append((page, room))
        else:
            assert self.tier.usage() == before, "who is refused pushes nothing out"
            assert not (may_pass and room.refused)

    @rule(which=st.integers(0, 9), dirty=st.booleans())
    def put(self, which: int, dirty: bool) -> None:
        if self.reserved:
            page, room = self.reserved.pop(which % len(self.reserved))
            taken = self.tier.put(page, room, dirty=dirty, stamp_ns=self.clock.now())
            if taken and dirty:
                self.queued += [
                    self.tier.get(one.page) for one in self.tier.queue([page.meta.id])[0]
                ]
            elif taken and room.passes:
                self.tier.discard([page.meta.id])

    @rule(which=st.integers(0, 9))
    def release(self, which: int) -> None:
        if self.reserved:
            self.reserved.pop(which % len(self.reserved))[1].release()

    @rule(which=st.integers(0, 9), how=st.sampled_from(["written", "failed", "refused"]))
    def end_write(self, which: int, how: str) -> None:
        if self.queued:
            page = self.queued.pop(which % len(self.queued))
            refused = self.clock.now() if how == "refused" else None
            end_write(
                self.tier,
                page.meta.id,
                written=page if how == "written" else None,
                refused_ns=refused,
            )

    @rule(number=st.integers(1, 60))
    def use(self, number: int) -> None:
        self.tier.touch(self.story.ids(number))

    @rule(number=st.integers(1, 60))
    def discard(self, number: int) -> None:
        self.tier.discard(self.story.ids(number))

    @rule(seconds=st.sampled_from([0.1, 10, 31, 61, 7200]))
    def pass_by(self, seconds: float) -> None:
        self.clock.pass_by(seconds)

    @invariant()
    def budget_holds(self) -> None:
        tier = self.tier
        tier.check_integrity()
        coming = sum(p.meta.nbytes for p, room in self.reserved if room.passes)
        here = sum(h.nbytes for h in tier._pages.records() if h.passes)
        assert tier._passing_bytes == coming + here
        assert tier._aside <= max(LIMIT // PASSING_SHARE, max(SIZES))
        assert tier.usage().nbytes <= tier.usage().peak_bytes <= LIMIT

    def teardown(self) -> None:
        for _, room in self.reserved:
            room.release()
        self.tier.close()
        assert self.tier.usage().nbytes == 0
        assert self.tier._passing_bytes == 0
        self.clock.pass_by(62)
        self.tier.reserve(KIB)
        assert self.tier._aside == 0
        assert not self.tier._pages.policy._here


TestPassing = Passing.TestCase
TestPassing.settings = examples(max_examples=40, stateful_step_count=40)


def test_what_was_read_ahead_is_no_use_until_somebody_wants_it() -> None:
    clock, story, policy = HandClock(), Story(nbytes=KIB), Keep()
    tier = HotTier(LIMIT, clock=clock, policy=policy)
    put(tier, story.page(1), dirty=False)
    clock.pass_by(5)
    tier.touch(story.ids(1))
    assert policy.learned() is None
    clock.pass_by(5)
    tier.touch(story.ids(1))
    learned = policy.learned()
    assert learned.seen == 1
