"""Levels of the tree of prefixes, asked by many clients."""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from omlx_cache.status.levels import PrefixLevels
from omlx_cache_storage.eviction.order import Record
from omlx_cache_storage.keys import BlockKey


class Listed:
    """A store without pages, whose listing takes as long as a test says."""

    decoder = None

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()
        self.listings = 0

    def records(self) -> Mapping[str, Sequence[Record]]:
        self.listings += 1
        self.begun.release()
        assert self.go.wait(30)
        return {}

    def readable_document(self, digest: BlockKey) -> Mapping[str, object]:
        return {}


def test_those_who_ask_at_once_have_the_pages_listed_once() -> None:
    store = Listed()
    levels = PrefixLevels(store)
    with ThreadPoolExecutor(8) as clients:
        asked = [clients.submit(levels.level, None, None, 10) for _ in range(8)]
        assert store.begun.acquire(timeout=30)
        # Another listing would begin now.
        assert not store.begun.acquire(timeout=0.2)
        store.go.set()
        assert [one.result(30)["rows"] for one in asked] == [[]] * 8
    assert store.listings == 1
