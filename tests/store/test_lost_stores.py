"""A store that is lost without `close` ends by itself: threads, socket, memory; nothing is lost."""

import gc
import logging
import threading
from collections import Counter
from pathlib import Path

import mlx.core as mx
import pytest

from kit import zoo
from kit.drive import random_tokens, request, settings
from kit.storage import Story, commit, files_in, open_store
from kit.units import KIB
from omlx_cache import BlockStore, PrefixCache


def _ours() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("omlx-cache")]


def _ended(before: list[threading.Thread]) -> None:
    """Wait for whoever closes what was lost; then no thread of a store may be left."""
    while busy := [
        t for t in _ours() if t not in before and t.name.endswith(("upkeep", "closing"))
    ]:
        busy[0].join(60)
        assert not busy[0].is_alive()
    for thread in _ours():
        # Told to end, and perhaps not yet there.
        thread.join(0 if thread in before else 10)
    assert [t for t in _ours() if t not in before] == []


def test_twenty_lost_stores_leave_no_thread_socket_or_page(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = _ours()
    gc.collect()
    stores = sum(type(found) is BlockStore for found in gc.get_objects())
    with caplog.at_level(logging.WARNING):
        for number in range(20):
            store = open_store(tmp_path / str(number), socket=tmp_path / f"{number}.sock")
            commit(store, Story(nbytes=8 * KIB), 1, 2, 3)
        del store
        gc.collect()
        assert sum(type(found) is BlockStore for found in gc.get_objects()) == stores
        _ended(before)
    assert list(tmp_path.glob("*.sock")) == []
    assert all(len(files_in(tmp_path / str(number))) == 3 for number in range(20))
    assert Counter(r.message for r in caplog.records).most_common(1)[0][1] == 20
    gc.collect()
    tiers = [found for found in gc.get_objects() if type(found).__name__ == "HotTier"]
    assert sum(tier.usage().pages for tier in tiers if tier.usage().limit_bytes == 1024 * KIB) == 0


def test_the_memory_of_a_lost_store_of_live_arrays_is_free(tmp_path: Path) -> None:
    before = _ours()
    model = zoo.build("llama")
    gc.collect()
    held = mx.get_active_memory()
    store: BlockStore | None = BlockStore(settings(tmp_path, write_policy="lazy"))
    cache: PrefixCache | None = PrefixCache(model, store)
    request(model, cache, random_tokens(500, 1))
    assert store.stats().hot.nbytes > 100 * KIB
    store = cache = None
    gc.collect()
    _ended(before)
    gc.collect()
    assert mx.get_active_memory() - held < 100 * KIB
    assert files_in(tmp_path), "what only memory had was not written"
