"""Something else under a page's name is no page: nothing hangs, and nothing of others' is read."""

import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.storage import Story, files_in, open_cold, read_cold
from omlx_cache_storage.cold.reader import read_header
from omlx_cache_storage.errors import PageUnreadable


def _directory(path: Path) -> None:
    path.mkdir()


def _link(path: Path) -> None:
    elsewhere = path.parents[2] / "elsewhere"
    elsewhere.write_bytes(b"x" * 100)
    path.symlink_to(elsewhere)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _socket(path: Path) -> None:
    # A socket's own name is short; where it lies does not matter to who opens it.
    with tempfile.TemporaryDirectory(dir="/tmp") as short, socket.socket(socket.AF_UNIX) as sock:
        sock.bind(f"{short}/s")
        os.rename(f"{short}/s", path)


@pytest.mark.parametrize("make", [os.mkfifo, _directory, _link, _device, _socket])
def test_what_is_no_file_is_a_miss_at_once_and_is_left_alone(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    story = Story()
    tier = open_cold(tmp_path)
    assert tier.write(story.page(1), 10**18, story.document) == "written"
    (path,) = files_in(tmp_path)
    path.unlink()
    make(path)
    with pytest.raises(PageUnreadable, match="not a regular file"):
        read_header(path)
    with pytest.raises(PageUnreadable):
        read_cold(tier, story.id(1))
    assert os.path.lexists(path)
    assert story.id(1) not in tier
    assert tier.usage().state == "ok"
    tier.check_integrity()
