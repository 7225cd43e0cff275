"""Several stores on one directory, and who may read what."""

import contextlib
import os
import shutil
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.storage import Story, commit, disk_usage, files_in, is_right, open_store, set_budget
from omlx_cache import BlockStore
from omlx_cache_storage.cold.budget import Budget
from omlx_cache_storage.errors import PageUnreadable

KIB = 1024


@pytest.fixture
def open_umask() -> Iterator[None]:
    """A process that would make everything readable for everybody."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix=f"oc-{os.getpid()}-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.usefixtures("open_umask")
def test_directories_are_0700_and_files_0600(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "made" / "on"))
    cold = tmp_path / "made" / "on" / "omlx-cache"
    with open_store(cold, durability="full") as store:
        commit(store, Story(), 1, 2, 3)
        assert store.flush()
    for path in (tmp_path / "made", tmp_path / "made" / "on", cold, *cold.rglob("*")):
        assert _mode(path) == (0o700 if path.is_dir() else 0o600), path
    assert len(files_in(cold)) == 3
    assert len(files_in(cold, "namespace.json")) == 1


@pytest.mark.usefixtures("open_umask")
def test_the_control_socket_is_0600(tmp_path: Path, runtime_dir: Path) -> None:
    path = runtime_dir / "store.sock"
    with open_store(tmp_path, socket=path):
        assert stat.S_ISSOCK(path.lstat().st_mode)
        assert _mode(path) == 0o600
    assert not path.exists()


def test_a_socket_that_cannot_be_had_does_not_stop_the_store(
    tmp_path: Path, runtime_dir: Path
) -> None:
    path = runtime_dir / "store.sock"
    with open_store(tmp_path / "a", socket=path), open_store(tmp_path / "b", socket=path) as second:
        assert commit(second, Story(), 1) == [True]
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_two_stores_of_one_process_share_a_directory(tmp_path: Path) -> None:
    """Both write all the time; neither deletes or damages what the other has."""
    pages = range(1, 9)
    stories = {name: [Story(f"{name} {turn}") for turn in range(4)] for name in "ab"}
    both = Story("both")
    with open_store(tmp_path) as first, open_store(tmp_path) as second:
        stores = {"a": first, "b": second}

        def work(name: str) -> None:
            for story in stories[name]:
                commit(stores[name], both, *pages)
                commit(stores[name], story, *pages)

        threads = [threading.Thread(target=work, args=(name,)) for name in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for store in stores.values():
            assert store.flush()
            assert store.stats().writer.failed_pages == 0  # type: ignore[union-attr]
    assert files_in(tmp_path, ".tmp-*") == []
    with open_store(tmp_path) as third:
        everything = [both, *stories["a"], *stories["b"]]
        for story in everything:
            assert all(is_right(third, page, story.nbytes) for page in story.ids(*pages))
        assert third.stats().cold.pages == len(everything) * len(pages)  # type: ignore[union-attr]


def test_a_store_that_opens_while_another_writes_takes_nothing_from_it(tmp_path: Path) -> None:
    stories = [Story(f"turn {turn}") for turn in range(12)]
    with open_store(tmp_path) as first:
        for story in stories:
            commit(first, story, 1, 2, 3)
            with open_store(tmp_path):
                pass
        assert first.flush()
        assert first.stats().writer.failed_pages == 0  # type: ignore[union-attr]
        _forget_memory(first)
        for story in stories:
            assert all(is_right(first, page, story.nbytes) for page in story.ids(1, 2, 3))


def test_a_page_that_the_other_store_evicted_is_a_miss(tmp_path: Path) -> None:
    story = Story(nbytes=128 * KIB)
    with open_store(tmp_path) as first:
        commit(first, story, 1, 2, 3)
        assert first.flush()
        with open_store(tmp_path) as second:
            set_budget(tmp_path, Budget(270 * KIB, "quota"))
            second.cold.settle()  # type: ignore[union-attr]
            assert second.stats().cold.pages == 1  # type: ignore[union-attr]
            assert disk_usage(tmp_path) <= 270 * KIB
        _forget_memory(first)
        assert is_right(first, story.id(1), 128 * KIB)
        for page in story.ids(2, 3):
            # It may know by now, or find out.
            with contextlib.suppress(PageUnreadable):
                assert not is_right(first, page, 128 * KIB)
            assert first.find(page) is None
        assert commit(first, story, 2) == [True]


def _forget_memory(store: BlockStore) -> None:
    for entry in store.hot.entries():
        store.hot.discard([entry.meta.id])
