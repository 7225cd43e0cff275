"""What a hint did to a stamp is not taken for the time of a use."""

import pytest

from kit.storage import Story
from kit.units import SECOND
from omlx_cache_storage.eviction.keep import Keep
from omlx_cache_storage.eviction.order import SHIFTS_NS, Priority

GAP_SECONDS = 7
MOST_SECONDS = 2 * GAP_SECONDS


def learned(priority: Priority) -> float:
    """Return the patience after an agent came back every few seconds for a while."""
    policy, story = Keep(), Story("one")
    now, before = 10**18, 0
    for _ in range(200):
        now += GAP_SECONDS * SECOND
        stamp = now + SHIFTS_NS[priority]
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
