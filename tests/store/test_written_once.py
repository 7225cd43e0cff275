"""A page is not written while the disk has it: whatever is stored, evicted, restored or started.
What is written is counted."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.examples import examples
from kit.storage import (
    FaultyDisk,
    HandClock,
    Story,
    commit,
    commit_to_disk,
    fetch,
    files_in,
    open_store,
    page_state,
    store_page,
)
from kit.units import KIB
from omlx_cache import BlockStore
from omlx_cache_storage.cold.disk import StrPath
from omlx_cache_storage.hot_page import PageState

STORIES = [Story("a", nbytes=8 * KIB), Story("b", nbytes=20 * KIB), Story("c", nbytes=500)]
WHICH = st.sampled_from(STORIES)
LAST = st.integers(1, 6)


def noting_twice() -> tuple[FaultyDisk, list[str]]:
    """Return a disk, and the pages that are published where one of that name lies."""
    disk, twice = FaultyDisk(), list[str]()

    def publish(temporary: StrPath, final: StrPath) -> None:
        if os.fspath(final).endswith(".safetensors") and os.path.lexists(final):
            twice.append(os.path.basename(final))

    disk.each["publish"] = publish
    return disk, twice


def turn(store: BlockStore, story: Story, last: int, tail: int) -> None:
    """Use, store and order a sequence as a session does, with what its end supersedes."""
    chain = story.ids(*range(1, last + 1))
    store.touch(chain)
    commit(store, story, *range(1, last + 1))
    if tail:
        store_page(store, story.page(last + 1, tail=tail))
    store.demote([story.id(last, tail=n) for n in (1, 2, 3)])


def partial_window(store: BlockStore, story: Story, last: int, held: int) -> None:
    """Store a page that may hold more of its block the next time."""
    page = story.page(last, group="window", held=held, nbytes=held * 100)
    if room := store.admit(page.meta.nbytes):
        store.put(page, room)


STEPS: st.SearchStrategy[Callable[[BlockStore, HandClock], object]] = st.one_of(
    st.builds(
        lambda s, n, t: lambda store, _: turn(store, s, n, t), WHICH, LAST, st.integers(0, 3)
    ),
    st.builds(
        lambda s, n, h: lambda store, _: partial_window(store, s, n, h),
        WHICH,
        LAST,
        st.sampled_from([4, 8, 16]),
    ),
    st.builds(lambda s, n: lambda store, _: store.touch(s.ids(*range(1, n + 1))), WHICH, LAST),
    st.builds(lambda s, n: lambda store, _: fetch(store, s.id(n)), WHICH, LAST),
    st.builds(lambda s, n: lambda store, _: store.hot.discard(clean(store, s, n)), WHICH, LAST),
    st.builds(lambda seconds: lambda _, clock: clock.pass_by(seconds), st.floats(0, 400)),
    st.just(lambda store, _: store.writer.tick()),
    st.just(lambda store, _: store.flush(30)),
    st.just(lambda store, _: store.writer.wait_for_progress(0)),
)


def clean(store: BlockStore, story: Story, last: int) -> list[object]:
    return [
        page
        for page in story.ids(*range(1, last + 1))
        if page_state(store.hot, page) is not PageState.DIRTY
    ]


@settings(
    max_examples=examples(30, 300), suppress_health_check=[HealthCheck.too_slow], deadline=None
)
@given(
    policy=st.sampled_from(["through", "lazy"]),
    cold=st.sampled_from([280 * KIB, 16 * 1024 * KIB]),
    runs=st.lists(st.lists(STEPS, max_size=25), min_size=1, max_size=3),
    wait_seconds=st.sampled_from([2, 86400]),
)
def test_no_page_is_written_while_the_disk_has_it(
    policy: str,
    cold: int,
    runs: list[list[Callable[[BlockStore, HandClock], object]]],
    wait_seconds: int,
) -> None:
    directory = Path(tempfile.mkdtemp())
    (disk, twice), clock = noting_twice(), HandClock()
    small = {"hot_bytes": 96 * KIB, "queue_bytes": 48 * KIB, "cold_bytes": cold}
    try:
        for steps in runs:
            with open_store(
                directory,
                disk,
                clock,
                write_policy=policy,
                commit_wait_seconds=wait_seconds,
                **small,
            ) as store:
                for step in steps:
                    step(store, clock)
                    clock.pass_by(0.001)
        assert twice == []
    finally:
        shutil.rmtree(directory)


@pytest.mark.parametrize("policy", ["through", "lazy"])
def test_what_the_disk_evicted_is_written_again_once_it_is_used_and_counted_so(
    tmp_path: Path, policy: str
) -> None:
    story, (disk, twice) = Story(nbytes=16 * KIB), noting_twice()
    with open_store(tmp_path, disk, write_policy=policy, cold_bytes=280 * KIB) as store:
        commit_to_disk(store, story, 1, 2)
        commit_to_disk(store, Story("other", nbytes=16 * KIB), *range(1, 7))
        before = store.stats().cold
        store.touch(story.ids(1, 2))
        assert store.flush()
        after = store.stats().cold
        assert before.rewritten_bytes == 0
        assert 0 < after.rewritten_bytes == after.written_bytes - before.written_bytes
        assert twice == []


def test_what_is_told_to_be_written_is_what_the_files_take(tmp_path: Path) -> None:
    story = Story(nbytes=50_000)
    with open_store(tmp_path) as store:
        commit_to_disk(store, story, 1, 2, 3)
        commit(store, story, 1, 2, 3)
        store.touch(story.ids(1, 2, 3))
        assert store.flush()
        cold = store.stats().cold
        assert cold.written_bytes == sum(f.stat().st_blocks * 512 for f in files_in(tmp_path))
        assert cold.rewritten_bytes == 0


def test_bytes_are_told_for_each_restored_token(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        commit_to_disk(store, Story(nbytes=50_000), 1, 2, 3)
        assert store.stats().written_bytes_per_restored_token is None
        store.counters.add(asked_tokens=1000, restored_tokens=500)
        stats = store.stats()
        told = stats.to_dict()["written_bytes_per_restored_token"]
        assert told == stats.written_bytes_per_restored_token == stats.cold.written_bytes / 500
