"""`daily_write_bytes`: beyond it pages stay in memory, are counted, and no flush calls them
durable."""

from pathlib import Path

import pytest

from kit.examples import some
from kit.storage import HandClock, Story, commit, files_in, is_right, open_store
from kit.units import KIB

LIMIT = 1000 * KIB
PAGE = 16 * KIB


@pytest.mark.parametrize("policy", ["through", "lazy"])
@pytest.mark.parametrize("hot", some([0, 256 * KIB, 4096 * KIB], 256 * KIB))
def test_what_is_written_in_a_day_stays_below_the_limit_at_ten_times_it(
    tmp_path: Path, policy: str, hot: int
) -> None:
    clock = HandClock()
    options = {"write_policy": policy, "hot_bytes": hot, "daily_write_bytes": LIMIT}
    with open_store(tmp_path, clock=clock, commit_wait_seconds=86400, **options) as store:
        for number in range(1, 11):
            commit(store, Story(f"of {number}", nbytes=PAGE), *range(1, 61))
            store.hot.check_integrity()
        assert not store.flush()
        assert not store.flush(), "some may have left memory by now"
        cold, writer = store.stats().cold, store.stats().writer
        assert 0.8 * LIMIT <= cold.written_bytes <= LIMIT
        assert cold.written_bytes <= cold.day_written_bytes <= cold.day_limit_bytes == LIMIT
        # What follows a rationed page is rationed unasked.
        assert cold.rationed_pages > 0
        assert writer.rationed_pages > 100
        assert (cold.state, cold.room) == ("ok", "rationed")
        assert sum(file.stat().st_size for file in files_in(tmp_path)) <= LIMIT
        store.hot.check_integrity()


def test_the_hot_tier_goes_on_and_the_next_day_flush_writes_what_it_has(tmp_path: Path) -> None:
    clock = HandClock()
    one, two = Story("one", nbytes=PAGE), Story("two", nbytes=PAGE)
    with open_store(tmp_path, clock=clock, hot_bytes=8192 * KIB, daily_write_bytes=LIMIT) as store:
        commit(store, one, *range(1, 61))
        assert not store.flush()
        commit(store, two, *range(1, 61))
        assert not store.flush()
        assert all(is_right(store, two.id(n), PAGE) for n in range(1, 61))
        assert len(files_in(tmp_path)) < 60
        flushed = []
        for _ in range(3):
            clock.pass_by(86400)
            flushed.append(store.flush())
        assert flushed == [False, False, True]
        assert len(files_in(tmp_path)) == 120
