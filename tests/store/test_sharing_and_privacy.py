"""Several stores on one directory, and who may read what."""

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.storage import Story, commit, is_right, open_store
from omlx_cache import BlockStore


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


def _forget_memory(store: BlockStore) -> None:
    for entry in store.hot.entries():
        store.hot.discard([entry.meta.id])
