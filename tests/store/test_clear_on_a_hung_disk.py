"""`clear` waits for the disk; whoever asks for anything else does not wait for `clear`."""

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.storage import FaultyDisk, Story, commit, files_in, open_cold, open_store
from omlx_cache_daemon.client import Client


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A private directory whose path leaves room for a socket's name; pytest's own do not."""
    path = Path(tempfile.mkdtemp(prefix=f"oc-{os.getpid()}-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def test_ping_answers_while_clear_waits_for_a_hung_disk(tmp_path: Path, short_dir: Path) -> None:
    story, disk = Story(), FaultyDisk()
    with open_store(tmp_path, disk, socket=short_dir / "s.sock") as store:
        commit(store, story, 1)
        assert store.flush()
        disk.reached.clear()
        disk.gate.clear()
        commit(store, story, 2)
        assert disk.reached.wait(30)
        client = Client(short_dir / "s.sock", timeout=30)
        cleared: list[object] = []

        def clear() -> None:
            cleared.append(client.call("clear", namespace=story.namespace.hex(), timeout=30))

        clearing = threading.Thread(target=clear)
        clearing.start()
        try:
            for op in ("ping", "stats", "ps", "ls"):
                assert client.call(op)
            assert clearing.is_alive()
        finally:
            disk.gate.set()
            clearing.join(60)
        assert cleared == [{"pages": 2}]
        assert files_in(tmp_path) == []
    again = open_cold(tmp_path)
    assert again.usage().pages == 0
