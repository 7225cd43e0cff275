"""What is cleared is served no more, holds up nobody, and what leaves memory stays on the disk."""

import threading
from pathlib import Path

import pytest

from kit.storage import (
    FaultyDisk,
    Story,
    check_integrity,
    commit,
    commit_to_disk,
    files_in,
    open_cold,
    open_store,
    store_page,
)
from kit.units import KIB
from omlx_cache_daemon.client import Client
from omlx_cache_storage.page import Buffer, OpenPage
from omlx_cache_storage.prefetch import read_page


@pytest.mark.parametrize("at", ["while it is read", "before the disk is cleared"])
def test_what_is_read_while_it_is_cleared_is_served_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    story = Story(nbytes=KIB)
    page = story.id(1)
    with open_store(tmp_path, hot_bytes=64 * KIB) as store:
        assert store_page(store, story.page(1))
        assert store.flush(30)
        assert store.leave_memory(story.namespace) == KIB

        def fill(reader: OpenPage, _room: object) -> Buffer:
            payload = bytearray(reader.meta.nbytes)
            reader.read_into([payload])
            if at == "while it is read":
                assert store.clear(story.namespace) == 1
            return payload

        def read(*_: object) -> bool:
            return read_page(store, page, lambda meta: store.reserve(meta.nbytes), fill) is not None

        if at == "while it is read":
            assert read()
        else:
            monkeypatch.setattr(store.writer, "wait_for_progress", read)
            assert store.clear(story.namespace) == 1
        assert store.find(page) is None
        assert store.flush(30)
        assert store.find(page) is None
        check_integrity(store)


def test_ping_answers_while_clear_waits_for_a_hung_disk(tmp_path: Path) -> None:
    story, disk = Story(), FaultyDisk()
    with open_store(tmp_path / "cold", disk, socket=tmp_path / "s.sock") as store:
        commit_to_disk(store, story, 1)
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


def test_one_namespace_leaves_memory_and_is_found_on_the_disk(tmp_path: Path) -> None:
    mine, other = Story("llama"), Story("other")
    with open_store(tmp_path) as store:
        commit(store, mine, 1, 2)
        commit_to_disk(store, other, 1)
        held, files = store.hot_usage(), files_in(tmp_path)
        freed = store.leave_memory(mine.namespace)
        assert (store.hot_usage().pages, store.hot_usage().nbytes) == (1, held.nbytes - freed)
        assert files_in(tmp_path) == files
        assert {page.tiers for page in store.listing() if page.namespace == mine.namespace} == {
            ("cold",)
        }


def test_what_the_disk_lacks_stays_in_memory(tmp_path: Path) -> None:
    story = Story("llama")
    with open_store(tmp_path, write_policy="lazy") as store:
        commit(store, story, 1, 2)
        assert not files_in(tmp_path)
        assert store.leave_memory(story.namespace) == 0
        assert store.hot_usage().pages == 2
