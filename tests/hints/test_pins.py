"""A pinned page stays for its time, within half of each tier, and the rest goes on as a cache."""

import errno
from pathlib import Path

import pytest

from kit.storage import FaultyDisk, HandClock, Story, commit, commit_to_disk, open_store, put
from kit.units import KIB, SECOND
from omlx_cache import BlockStore
from omlx_cache_daemon.changing import change_pins
from omlx_cache_storage.cold.small_files import read_pins
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.hot import HotTier
from omlx_cache_storage.pins import Pinned, PinRecord, Pins

PAGE = 64 * KIB
COLD_PAGE = PAGE + 24 * KIB
ROOM_TO_WRITE = PAGE + 100 * KIB


@pytest.fixture
def story() -> Story:
    return Story(nbytes=PAGE)


def _hot(tier: HotTier, story: Story) -> list[int]:
    return [number for number in range(1, 30) if tier.info(story.id(number)) is not None]


def _cold(store: BlockStore, story: Story) -> list[int]:
    return [number for number in range(1, 30) if story.id(number) in store.cold]


def _put(tier: HotTier, story: Story, *numbers: int) -> None:
    for page in story.pages(*numbers):
        put(tier, page, dirty=False)


def _pin(tier: HotTier | ColdTier, story: Story, *numbers: int, seconds: int = 60) -> PinRecord:
    """Pin a chain as a store does; what is there of it is pinned when this returns."""
    clock = tier._clock if isinstance(tier, HotTier) else tier._index.clock
    now = clock.now()
    pin = story.pin(*numbers, since_ns=now, until_ns=now + seconds * SECOND)
    assert tier.pins.add(pin)
    return pin


def _pinned(tier: HotTier | ColdTier, story: Story, *numbers: int, seconds: int = 60) -> Pinned:
    _pin(tier, story, *numbers, seconds=seconds)
    return tier.repin(story.ids(*numbers))


def test_a_pin_that_has_ended_makes_room_for_another(story: Story) -> None:
    clock, other = HandClock(), Story("other", nbytes=PAGE)
    tier = HotTier(6 * PAGE, clock=clock)
    _put(tier, story, 1, 2, 3)
    _put(tier, other, 1, 2)
    assert _pinned(tier, story, 1, 2, 3).pages == 3
    assert _pinned(tier, other, 1, 2, seconds=600) == Pinned(2, 0, 0)
    clock.pass_by(61)
    assert _pinned(tier, other, 1, 2, seconds=600).pages == 2
    tier.check_integrity()


def test_a_prefix_that_is_pinned_twice_stays_until_both_have_ended(story: Story) -> None:
    pins, now = Pins(), 100
    # Another process may not have known of all that leads to the same page.
    first, second = (
        story.pin(*chain, since_ns=n, until_ns=now + n) for chain, n in (((2,), 30), ((1, 2), 20))
    )
    assert pins.add(second)
    assert pins.add(first)
    assert pins.until(story.namespace, story.id(2).key) == first.end_ns
    assert pins.merged((), now) == (first,), "the file has the last to end"
    pins.go_by((first,), (first,))
    pins.remove(first)
    assert pins.until(story.namespace, story.id(2).key) == second.end_ns
    assert pins.merged((first,), now) == (second,)
    pins.go_by((second,), (second,))
    assert not pins.is_unwritten
    # Somebody took it out of the file.
    assert pins.merged((), now) == ()
    pins.go_by((), ())
    assert pins.until(story.namespace, story.id(2).key) == 0
    assert not pins.namespaces


def test_pins_of_others_stay_in_their_place(story: Story) -> None:
    pins, other = Pins(), Story("other")
    mine, theirs = story.pin(1), other.pin(1)
    assert pins.add(mine)
    assert pins.merged((theirs,), 2) == (theirs, mine)
    pins.go_by((theirs, mine), (theirs, mine))
    assert pins.merged((mine, theirs), 2) == (mine, theirs), "or each would write in turn"


def test_more_blocks_than_the_file_has_room_for_are_not_pinned(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omlx_cache_storage.pins.MOST_KEYS", 3)
    pins = Pins()
    assert pins.add(story.pin(1, 2))
    assert pins.add(story.pin(1, 2, since_ns=5)), "one chain is written once"
    assert not pins.add(story.pin(1, 2, 3))
    assert pins.until(story.namespace, story.id(3).key) == 0


def test_a_restart_ends_no_pin_and_unpinning_is_for_good(tmp_path: Path, story: Story) -> None:
    other = Story("other", nbytes=PAGE)
    limit = 6 * COLD_PAGE + ROOM_TO_WRITE
    with open_store(tmp_path, cold_bytes=limit) as store:
        commit_to_disk(store, story, 1)
        made = store.pin(story.namespace, story.ids(1), 3600)
        assert store.flush()
        assert read_pins(tmp_path) == (made.pin,)
    with open_store(tmp_path, cold_bytes=limit, hot_bytes=4 * PAGE) as store:
        commit(store, story, 1)
        for number in range(2, 12):
            commit_to_disk(store, other, number)
        assert _cold(store, story) == [1]
        assert _hot(store.hot, story) == [1], "in memory from its first use on"
        change_pins(tmp_path, lambda pins: ())
        assert store.flush()
        for number in range(12, 22):
            commit_to_disk(store, other, number)
        assert _cold(store, story) == []
        assert _hot(store.hot, story) == []


def test_a_pin_needs_no_disk_that_answers(tmp_path: Path, story: Story) -> None:
    disk = FaultyDisk()
    with open_store(tmp_path, disk) as store:
        commit_to_disk(store, story, 1)
        disk.fail = dict.fromkeys(("replace", "open", "write"), errno.EIO)
        made = store.pin(story.namespace, story.ids(1), 3600)
        assert [tier.pages for tier in made.tiers] == [1, 1]
        store.flush()
        assert read_pins(tmp_path) == ()
        disk.fail = {}
        assert store.flush()
        assert read_pins(tmp_path) == (made.pin,)
