"""The socket of a store: private, and never a reason not to store."""

import os
import socket
import stat
from pathlib import Path

from kit.storage import Story, commit, open_store


def test_the_control_socket_is_0600(tmp_path: Path) -> None:
    path, before = tmp_path / "store.sock", os.umask(0)
    try:
        with open_store(tmp_path / "cold", socket=path):
            assert stat.S_ISSOCK(path.lstat().st_mode)
            assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    finally:
        os.umask(before)
    assert not path.exists()


def test_a_socket_that_cannot_be_had_does_not_stop_the_store(tmp_path: Path) -> None:
    path = tmp_path / "store.sock"
    with open_store(tmp_path / "a", socket=path), open_store(tmp_path / "b", socket=path) as second:
        assert commit(second, Story(), 1) == [True]
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
