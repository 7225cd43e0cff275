"""How a commit waits for the writer: as long as that progresses, and once for one that does not."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from kit import zoo
from kit.drive import prefill, random_tokens, settings
from kit.storage.faults import FaultyDisk
from omlx_cache import BlockStore, PrefixCache
from omlx_cache.commit import admission
from omlx_cache_storage.page import PageId

PROMPT = random_tokens(400, 3)


def test_what_the_writer_ends_between_a_refusal_and_the_wait_is_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = zoo.build("qwen3_next"), zoo.build("llama")
    # Two of the small pages make room for a large one, and the queue takes one at a time.
    budget = {"hot_bytes": 66_000, "queue_bytes": 10_000}
    with BlockStore(settings(tmp_path, write_policy="lazy", **budget)) as store:
        with PrefixCache(small, store).session(PROMPT) as session:
            prefill(small, session, 512)
            session.commit()
        admit, refused = store.admit, 0

        def late(nbytes: int, own: Collection[PageId] = (), **options: Any) -> bool:
            nonlocal refused
            granted = admit(nbytes, own, **options)
            if not granted:
                refused += 1
                while store.wait_for_writer(30):
                    pass
            return granted

        monkeypatch.setattr(store, "admit", late)
        with PrefixCache(large, store).session(PROMPT[:96]) as session:
            prefill(large, session, 96)
            result = session.commit()
        assert refused
        assert (result.pages, result.skipped) == (3, {})


def test_a_commit_waits_once_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "STALL_SECONDS", 0.05)
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
