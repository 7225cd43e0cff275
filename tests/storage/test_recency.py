"""The clock that stamps what is used."""

import time

import pytest

from omlx_cache_storage.eviction.keep import SUPERSEDED_NS, Clock, age_seconds


def test_later_demotions_leave_before_earlier_ones_and_before_everything_else() -> None:
    clock = Clock()
    earlier, later = clock.superseded(), clock.superseded()
    assert later < earlier <= SUPERSEDED_NS < clock.now()


def test_stamps_go_on_as_fast_as_time_does_when_the_wall_clock_is_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A page that was used before would stay young for as long as the clock is behind."""
    wall, elapsed = time.time_ns(), time.monotonic_ns()
    monkeypatch.setattr(time, "time_ns", lambda: wall)
    monkeypatch.setattr(time, "monotonic_ns", lambda: elapsed)
    clock = Clock()
    used = clock.now()
    wall, elapsed = wall - 365 * 86_400 * 10**9, elapsed + 10 * 10**9
    assert age_seconds(used, clock.now()) == pytest.approx(10.0)
    wall, elapsed = wall + 10**9, elapsed + 10**9
    assert age_seconds(used, clock.now()) == pytest.approx(11.0)
