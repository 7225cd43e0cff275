"""How long the patience of `keep` may become, and what it costs to learn it."""

from kit.storage import Story
from omlx_cache.simulate.tiers import VirtualClock
from omlx_cache_storage.eviction.ages import BUCKETS, Learned
from omlx_cache_storage.eviction.keep import ENOUGH_USES, GHOST_SECONDS, Keep
from omlx_cache_storage.hot import HotTier

SECOND = 1_000_000_000
DAY = 86_400 * SECOND
START = 1_700_000_000 * SECOND
PAGE = 1024


def test_who_comes_once_a_day_does_not_keep_out_who_comes_four_times_an_hour() -> None:
    clock = VirtualClock(START)
    daily, often = Story("daily", nbytes=PAGE), Story("often", nbytes=PAGE)
    pages = list(range(1, 61))
    tier = HotTier(len(pages) * PAGE, clock=clock, policy=Keep())
    for page in daily.pages(*pages):
        room = tier.reserve(PAGE)
        assert room
        assert tier.put(page, room, dirty=False, stamp_ns=clock.now())
    for day in range(1, 80):
        clock.set(START + day * DAY)
        tier.touch(daily.ids(*pages), clock.now())
    assert tier.usage().patience_seconds <= GHOST_SECONDS
    clock.set(clock.now() + 900 * SECOND)
    for page in often.pages(1, 2, 3):
        room = tier.reserve(PAGE)
        assert room, "nobody sees the returns of who is refused so long"
        assert tier.put(page, room, dirty=False, stamp_ns=clock.now())
    tier.check_integrity()


def test_a_patience_of_weeks_in_a_file_is_cut() -> None:
    learned = Learned((0.0,) * BUCKETS, ENOUGH_USES, 2e6)
    assert Keep(learned).patience_ns == GHOST_SECONDS * SECOND
