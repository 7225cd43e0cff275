"""When a page goes to the disk: through, lazy, and never."""

import threading
from pathlib import Path

import pytest

from kit.storage import (
    FaultyDisk,
    Story,
    commit,
    expected_payload,
    files_in,
    open_cold,
    open_store,
    read_cold,
    store_page,
)
from kit.units import KIB
from omlx_cache_storage.errors import PageError


def _on_disk(directory: Path, story: Story) -> list[int]:
    """Return which pages a fresh reader of the directory finds whole."""
    tier = open_cold(directory)
    found = [number for number in range(1, 20) if story.id(number) in tier]
    for number in found:
        page = story.id(number)
        assert read_cold(tier, page) == expected_payload(page, story.nbytes)
    return found


def test_lazy_never_waits_unless_told_to(tmp_path: Path) -> None:
    story, disk = Story(nbytes=16 * KIB), FaultyDisk()
    options = {"write_policy": "lazy", "hot_bytes": 64 * KIB, "queue_bytes": 64 * KIB}
    with open_store(tmp_path, disk, **options) as store:
        disk.gate.clear()
        taken = [store_page(store, story.page(number)) for number in range(1, 9)]
        assert taken == [True] * 4 + [False] * 4
        disk.gate.set()
        assert store.flush()
        assert _on_disk(tmp_path, story) == [1, 2, 3, 4]


def test_a_full_queue_waits_when_the_setting_says_so(tmp_path: Path) -> None:
    story = Story(nbytes=16 * KIB)
    with open_store(tmp_path, queue_bytes=16 * KIB, commit_wait_seconds=86400) as store:
        assert all(commit(store, story, *range(1, 13)))
        assert store.flush()
        writer = store.stats().writer
        assert (writer.written_pages, writer.dropped_pages) == (12, 0)
        assert writer.peak_bytes <= 16 * KIB


def test_hot_cache_only_starts_no_writer(tmp_path: Path) -> None:
    with open_store(tmp_path, hot_cache_only=True) as store:
        assert store.stats().writer is None
        assert "omlx-cache-writer" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("gone", [True, False], ids=["gone", "damaged"])
def test_a_page_in_memory_that_is_found_lost_on_the_disk_is_written_again(
    tmp_path: Path, gone: bool
) -> None:
    """A request may read a page ahead while another computes it and brings it into memory."""
    story = Story()
    with open_store(tmp_path) as store:
        commit(store, story, 1)
    with open_store(tmp_path) as store:
        commit(store, story, 1)
        (file,) = files_in(tmp_path)
        file.unlink() if gone else file.write_bytes(file.read_bytes()[:-1] + b"?")
        with pytest.raises(PageError):
            read_cold(store.cold, story.id(1))
        assert store.flush()
    assert _on_disk(tmp_path, story) == [1]


@pytest.mark.parametrize("policy", ["through", "lazy"])
def test_closing_writes_what_is_left_and_is_done_twice_at_no_cost(
    tmp_path: Path, policy: str
) -> None:
    story = Story()
    store = open_store(tmp_path, write_policy=policy)
    commit(store, story, 1, 2, 3)
    assert store.close()
    assert store.close()
    assert store.hot.usage().pages == 0
    assert not store.admit(1, ())
    assert store.find(story.id(1)) is None
    assert store.flush(0.0)
    assert _on_disk(tmp_path, story) == [1, 2, 3]
