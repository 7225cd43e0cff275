"""How a commit waits for the writer: as long as that progresses, and once for one that does not."""

from pathlib import Path

import pytest

from kit import zoo
from kit.drive import prefill, random_tokens, settings
from kit.storage.faults import FaultyDisk
from omlx_cache import BlockStore, PrefixCache
from omlx_cache.commit import admission

PROMPT = random_tokens(400, 3)


def test_a_commit_waits_once_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "WRITER_STALL_SECONDS", 0.05)
    model, disk = zoo.build("gemma3_text"), FaultyDisk()
    budget = {"hot_bytes": 30_000, "queue_bytes": 30_000, "commit_wait_seconds": 86400}
    store = BlockStore(settings(tmp_path, **budget), filesystem=disk)
    disk.gate.clear()
    try:
        waits: list[bool] = []
        wait = store.wait_for_writer

        def counted(timeout: float, since: int | None = None) -> bool:
            waits.append(wait(timeout, since))
            return waits[-1]

        monkeypatch.setattr(store, "wait_for_writer", counted)
        with PrefixCache(model, store).session(PROMPT) as session:
            prefill(model, session, 64)
            result = session.commit()
        assert result.skipped["no_room"] > 1
        assert waits.count(False) == 1
    finally:
        disk.gate.set()
        store.close()
