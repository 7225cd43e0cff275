"""A page that is read while its namespace is cleared comes back neither in memory nor on disk."""

from pathlib import Path

import pytest

from kit.storage import Story, check_integrity, open_store, store_page
from omlx_cache_storage.page import Buffer, OpenPage
from omlx_cache_storage.prefetch import read_page

KIB = 1024


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
            assert store.writer is not None
            monkeypatch.setattr(store.writer, "wait_for_progress", read)
            assert store.clear(story.namespace) == 1
        assert store.find(page) is None
        assert store.flush(30)
        assert store.find(page) is None
        check_integrity(store)
