"""Pages that were to pass through memory while the disk failed: it is asked again for them."""

import errno
from pathlib import Path

import pytest

from kit.storage import Story, commit, open_store
from kit.storage.faults import FaultyDisk, HandClock
from omlx_cache_storage.eviction.keep import Keep

KIB = 1024
PAGE = 64 * KIB


@pytest.mark.parametrize("write_policy", ["through", "lazy"])
def test_after_a_failure_of_the_disk_pages_pass_again_though_memory_stays_young(
    tmp_path: Path, write_policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = property(lambda _: 50 * 10**9, lambda *_: None)
    monkeypatch.setattr(Keep, "patience_ns", patience, raising=False)
    disk, clock = FaultyDisk(), HandClock()
    sizes = {"hot_bytes": 16 * PAGE, "queue_bytes": 16 * PAGE, "cold_bytes": "64MiB"}
    with open_store(tmp_path, disk=disk, clock=clock, write_policy=write_policy, **sizes) as store:
        ours, theirs = Story("ours", nbytes=PAGE), Story("theirs", nbytes=PAGE)
        commit(store, ours, *range(1, 17))
        assert store.flush()
        disk.fail["write"] = errno.EIO
        assert commit(store, theirs, 1) == [True]
        store.wait_for_writer(5)
        assert commit(store, theirs, 2) == [False]
        disk.fail.clear()
        for _ in range(3):
            clock.pass_by(40)
            store.touch(ours.ids(*range(1, 17)))
        # As the writer does when it is idle.
        ended = store.writes_ended
        store.writer.tick()
        store.wait_for_writer(5, ended)
        assert commit(store, theirs, 2) == [True]
        assert store.flush()
        assert store.cold is not None
        assert all(page in store.cold for page in theirs.ids(1, 2))
        store.hot.check_integrity()
