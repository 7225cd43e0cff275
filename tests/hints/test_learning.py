"""What a hint did to a stamp is not taken for the time of a use."""

from pathlib import Path

import pytest

from kit.storage import HandClock, Story, open_cold
from omlx_cache_storage.eviction.keep import Keep
from omlx_cache_storage.hints import Priority, use_stamp

SECOND = 1_000_000_000
GAP_SECONDS = 7
MOST_SECONDS = 2 * GAP_SECONDS


def learned(priority: Priority) -> float:
    """Return the patience after an agent came back every few seconds for a while."""
    policy, story = Keep(), Story("one")
    now, before = 10**18, 0
    for _ in range(200):
        now += GAP_SECONDS * SECOND
        stamp = use_stamp(now, priority)
        policy.shifted(stamp, now)
        policy.wanted(story.ids(30), stamp)
        if before:
            policy.moved(before, stamp, 20, used=True)
        else:
            policy.added(stamp, 20)
        before = stamp
    return policy.patience_ns / SECOND


@pytest.mark.parametrize("priority", ["low", "high"])
def test_a_priority_does_not_change_what_is_learned(priority: Priority) -> None:
    patience = learned("normal")
    assert GAP_SECONDS <= patience < MOST_SECONDS
    assert learned(priority) == patience


def test_what_a_hint_did_is_known_until_the_request_has_stored_its_first_page() -> None:
    policy, now = Keep(), 10**18
    stamp = use_stamp(now, "high")
    policy.shifted(stamp, now)
    for _ in range(20):
        now += SECOND
        policy.wanted([], now)
    policy.wanted([], stamp)
    policy.added(now, 600)
    for _ in range(64):
        now += GAP_SECONDS * SECOND
        policy.moved(now - GAP_SECONDS * SECOND, now, 600, used=True)
    assert GAP_SECONDS <= policy.patience_ns / SECOND < MOST_SECONDS


def test_the_disk_goes_on_learning_while_pinned_pages_come(tmp_path: Path) -> None:
    clock, story, pinned = HandClock(), Story("one"), Story("pinned")
    tier = open_cold(tmp_path, clock=clock, policy=Keep)
    for number in range(1, 41):
        assert tier.write(story.page(number), clock.now(), story.document) == "written"
    until = clock.now() + 86_400 * SECOND
    assert tier.pins.add(pinned.pin(1, 2, until_ns=until))
    # Memory has it at the end of its pin, and the writer says so.
    assert tier.write(pinned.page(1), until, pinned.document) == "written"
    for _ in range(80):
        clock.pass_by(GAP_SECONDS)
        tier.touch(story.ids(*range(1, 41)))
    assert GAP_SECONDS <= tier.patience_ns / SECOND < MOST_SECONDS
