"""A pinned page stays for its time, within half of each tier, and the rest goes on as a cache."""

from pathlib import Path

import pytest

from kit.storage import HandClock, Story, commit, open_store
from omlx_cache import BlockStore
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.format.names import LEDGER_FILE
from omlx_cache_storage.hints import Pinned, shift_ns
from omlx_cache_storage.hot import HotTier

KIB = 1024
PAGE = 64 * KIB
COLD_PAGE = PAGE + 24 * KIB
ROOM_TO_WRITE = PAGE + 100 * KIB
SECOND = 1_000_000_000


@pytest.fixture
def story() -> Story:
    return Story(nbytes=PAGE)


def _hot(tier: HotTier, story: Story) -> list[int]:
    return [number for number in range(1, 30) if tier.info(story.id(number)) is not None]


def _cold(store: BlockStore, story: Story) -> list[int]:
    assert store.cold is not None
    return [number for number in range(1, 30) if story.id(number) in store.cold]


def _put(tier: HotTier, story: Story, *numbers: int) -> None:
    for page in story.pages(*numbers):
        assert tier.reserve(PAGE).granted
        assert tier.put(page, dirty=False)


def test_pinned_pages_stay_in_memory_until_their_time_is_over(story: Story) -> None:
    clock, other = HandClock(), Story("other", nbytes=PAGE)
    tier = HotTier(6 * PAGE, clock=clock)
    _put(tier, story, 1, 2)
    until = clock.now() + 60 * SECOND
    assert tier.hold(1, story.ids(1, 2), until) == Pinned(2, 2, 2 * PAGE)
    _put(tier, other, *range(1, 12))
    assert _hot(tier, story) == [1, 2]
    clock.pass_by(61)
    _put(tier, other, *range(12, 30))
    assert _hot(tier, story) == []
    tier.check_integrity()


def test_all_pins_together_take_half_of_a_tier_root_first(story: Story) -> None:
    clock, other = HandClock(), Story("other", nbytes=PAGE)
    tier = HotTier(6 * PAGE, clock=clock)
    _put(tier, story, 1, 2, 3, 4)
    until = clock.now() + 60 * SECOND
    assert tier.hold(1, story.ids(1), until) == Pinned(1, 1, PAGE)
    assert tier.hold(2, story.ids(1, 2, 3, 4), until) == Pinned(4, 3, 3 * PAGE)
    _put(tier, other, 1, 2, 3, 4, 5, 6, 7)
    assert _hot(tier, story) == [1, 2, 3]
    assert len(_hot(tier, other)) == 3
    assert tier.usage().nbytes <= tier.limit_bytes


def test_a_page_in_two_pins_stays_for_the_later_one(story: Story) -> None:
    clock, other = HandClock(), Story("other", nbytes=PAGE)
    tier = HotTier(6 * PAGE, clock=clock)
    _put(tier, story, 1, 2)
    tier.hold(1, story.ids(1, 2), clock.now() + 600 * SECOND)
    tier.hold(2, story.ids(1), clock.now() + 60 * SECOND)
    tier.let_loose(1)
    _put(tier, other, *range(1, 12))
    assert _hot(tier, story) == [1]
    tier.let_loose(2)
    tier.let_loose(2)
    _put(tier, other, *range(12, 20))
    assert _hot(tier, story) == []


def test_a_page_that_comes_later_is_pinned_then(story: Story) -> None:
    clock, other = HandClock(), Story("other", nbytes=PAGE)
    tier = HotTier(6 * PAGE, clock=clock)
    assert tier.hold(1, story.ids(1, 2), clock.now() + 600 * SECOND) == Pinned(0, 0, 0)
    _put(tier, story, 1)
    tier.discard(story.ids(1))
    _put(tier, story, 1, 2)
    _put(tier, other, *range(1, 12))
    assert _hot(tier, story) == [1, 2]


def test_neither_a_use_nor_a_demotion_takes_a_pin_away(story: Story) -> None:
    clock, other = HandClock(), Story("other", nbytes=PAGE)
    tier = HotTier(6 * PAGE, clock=clock)
    _put(tier, story, 1)
    tier.hold(1, story.ids(1), clock.now() + 600 * SECOND)
    tier.touch(story.ids(1))
    tier.demote(story.ids(1))
    _put(tier, other, *range(1, 12))
    assert _hot(tier, story) == [1]


def test_where_memory_is_short_the_rest_keeps_half_of_what_is_left(story: Story) -> None:
    clock, other = HandClock(), Story("other", nbytes=PAGE)
    tier = HotTier(6 * PAGE, clock=clock)
    _put(tier, story, 1, 2, 3)
    tier.hold(1, story.ids(1, 2, 3), clock.now() + 600 * SECOND)
    tier.allow(3 * PAGE)
    assert tier.shrink(3 * PAGE)
    assert _hot(tier, story) == [1, 2, 3]
    _put(tier, other, 1)
    assert _hot(tier, story) == [1, 2]


def test_a_high_priority_does_not_push_out_what_is_pinned_for_a_shorter_time(
    tmp_path: Path, story: Story
) -> None:
    clock, other, later = HandClock(), Story("other", nbytes=PAGE), shift_ns("high")
    tier = HotTier(4 * PAGE, clock=clock)
    _put(tier, story, 1, 2)
    tier.hold(1, story.ids(1, 2), clock.now() + 60 * SECOND)
    for page in other.pages(1, 2, 3):
        assert tier.reserve(PAGE, shift_ns=later).granted
        assert tier.put(page, dirty=False, stamp_ns=clock.now() + later)
    assert _hot(tier, story) == [1, 2]
    cold = ColdTier(tmp_path, 4 * COLD_PAGE + ROOM_TO_WRITE, clock=clock)
    cold.open()
    for page in story.pages(1, 2):
        assert cold.write(page, clock.now(), {}) == "written"
    assert cold.hold(1, story.ids(1, 2), clock.now() + 60 * SECOND).pages == 2
    for page in other.pages(*range(1, 9)):
        cold.write(page, clock.now() + later, {})
    assert all(page in cold for page in story.ids(1, 2))
    assert cold.usage().evicted_pages > 0
    cold.check_integrity()


def test_what_is_written_later_is_pinned_on_the_disk_then(tmp_path: Path, story: Story) -> None:
    clock, other = HandClock(), Story("other", nbytes=PAGE)
    cold = ColdTier(tmp_path, 5 * COLD_PAGE + ROOM_TO_WRITE, clock=clock)
    cold.open()
    assert cold.hold(1, story.ids(1, 2), clock.now() + 60 * SECOND) == Pinned(0, 0, 0)
    for page in (*story.pages(1, 2), *other.pages(*range(1, 9))):
        assert cold.write(page, clock.now(), {}) == "written"
    assert all(page in cold for page in story.ids(1, 2))
    clock.pass_by(61)
    for page in other.pages(*range(9, 18)):
        assert cold.write(page, clock.now(), {}) == "written"
    assert not any(page in cold for page in story.ids(1, 2))


def test_pinned_pages_stay_on_the_disk_and_the_rest_of_it_is_used(
    tmp_path: Path, story: Story
) -> None:
    other = Story("other", nbytes=PAGE)
    limit = 6 * COLD_PAGE + ROOM_TO_WRITE
    with open_store(tmp_path, cold_bytes=limit, hot_bytes=2 * PAGE) as store:
        commit(store, story, 1, 2)
        assert store.flush()
        made = store.pin(story.ids(1, 2), 600)
        assert made.tiers[1].pages == 2
        for number in range(1, 12):
            commit(store, other, number)
            assert store.flush()
        assert _cold(store, story) == [1, 2]
        assert _cold(store, other)[-1] == 11
        store.unpin(made.number)
        for number in range(12, 24):
            commit(store, other, number)
            assert store.flush()
        assert _cold(store, story) == []
        usage = store.stats().cold
        assert usage is not None
        assert usage.peak_bytes <= usage.limit_bytes


def test_a_restart_ends_a_pin_and_takes_its_pages_for_used_then(
    tmp_path: Path, story: Story
) -> None:
    other = Story("other", nbytes=PAGE)
    with open_store(tmp_path) as store:
        commit(store, story, 1)
        commit(store, other, 1)
        assert store.flush()
        store.pin(story.ids(1), 3600)
    limit = 6 * COLD_PAGE + ROOM_TO_WRITE
    with open_store(tmp_path, cold_bytes=limit) as store:
        assert store.cold is not None
        assert [entry.page for entry in store.cold.entries()] == [other.id(1), story.id(1)]
        for number in range(2, 12):
            commit(store, other, number)
            assert store.flush()
        assert _cold(store, story) == []


def test_a_pin_outlives_that_the_directory_is_read_again(tmp_path: Path, story: Story) -> None:
    other = Story("other", nbytes=PAGE)
    limit = 6 * COLD_PAGE + ROOM_TO_WRITE
    with open_store(tmp_path, cold_bytes=limit, hot_bytes=2 * PAGE) as store:
        commit(store, story, 1, 2)
        assert store.flush()
        store.pin(story.ids(1, 2), 600)
        (tmp_path / LEDGER_FILE).unlink()
        for number in range(1, 12):
            commit(store, other, number)
            assert store.flush()
        assert _cold(store, story) == [1, 2]


def test_what_another_process_writes_is_pinned_here_then(tmp_path: Path, story: Story) -> None:
    other = Story("other", nbytes=PAGE)
    limit = 6 * COLD_PAGE + ROOM_TO_WRITE
    with open_store(tmp_path, cold_bytes=limit, hot_bytes=2 * PAGE) as store:
        store.pin(story.ids(1), 600)
        with open_store(tmp_path, cold_bytes=limit) as writer:
            commit(writer, story, 1)
            assert writer.flush()
        for number in range(1, 12):
            commit(store, other, number)
            assert store.flush()
        assert _cold(store, story) == [1]
