"""`clear` waits for the disk; whoever asks for anything else does not wait for `clear`."""

import threading
from pathlib import Path

from kit.storage import FaultyDisk, Story, commit, files_in, open_cold, open_store
from omlx_cache_daemon.client import Client


def test_ping_answers_while_clear_waits_for_a_hung_disk(tmp_path: Path) -> None:
    story, disk = Story(), FaultyDisk()
    with open_store(tmp_path / "cold", disk, socket=tmp_path / "s.sock") as store:
        commit(store, story, 1)
        assert store.flush()
        disk.reached.clear()
        disk.gate.clear()
        commit(store, story, 2)
        assert disk.reached.wait(30)
        client = Client(tmp_path / "s.sock", timeout=30)
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
    again = open_cold(tmp_path / "cold")
    assert again.usage().pages == 0
