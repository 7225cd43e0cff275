"""A page that the disk's budget has no room for holds up neither memory nor a commit."""

from pathlib import Path

import pytest

from kit.examples import some
from kit.storage import Story, commit, commit_to_disk, open_store
from kit.units import KIB


@pytest.mark.parametrize("policy", ["through", "lazy"])
@pytest.mark.parametrize("wait_seconds", [2, 86400])
@pytest.mark.parametrize("hot", some([0, 96 * KIB], 96 * KIB))
def test_a_chain_beyond_every_budget_is_committed_in_turns_without_end(
    tmp_path: Path, policy: str, wait_seconds: int, hot: int
) -> None:
    story = Story("long", nbytes=16 * KIB)
    with open_store(
        tmp_path,
        hot_bytes=hot,
        queue_bytes=48 * KIB,
        cold_bytes=280 * KIB,
        write_policy=policy,
        commit_wait_seconds=wait_seconds,
    ) as store:
        for turn in range(6):
            for last in range(2, 41, 2):
                store.touch(story.ids(*range(1, last + 1)))
                commit(store, story, last - 1, last)
            assert store.flush(60), f"turn {turn}"
            store.hot.check_integrity()
        usage = store.stats().cold
        assert usage.refused_pages > 0
        assert usage.state == "ok"
        other = Story("other", nbytes=16 * KIB)
        commit_to_disk(store, other, 1, 2)
        assert all(page in store.cold for page in other.ids(1, 2))
