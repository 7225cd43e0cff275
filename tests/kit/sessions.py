"""Fixtures of every test: a model, a store, and a cache of one in the other; a sequence of pages, a
disk that fails and clocks to set."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit import zoo
from kit.drive import settings
from kit.examples import some
from kit.storage import FaultyDisk, HandClock, SetTime, Story
from omlx_cache import BlockStore, PrefixCache


@pytest.fixture(params=some(["llama", "qwen3"], "llama"))
def model(request: pytest.FixtureRequest) -> Any:
    """A real model with KVCache layers only."""
    return zoo.build(request.param)


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Callable[..., BlockStore]]:
    """Opens stores over one directory; each call closes the store before it."""
    opened: list[BlockStore] = []

    def open_one(**fields: Any) -> BlockStore:
        if opened:
            assert opened[-1].close()
        opened.append(BlockStore(settings(tmp_path / "cold", **fields)))
        return opened[-1]

    yield open_one
    for store in opened:
        store.flush(30)
        store.hot.check_integrity()
        if store.cold is not None:
            store.cold.check_integrity()
        store.close()


@pytest.fixture
def store(open_store: Callable[..., BlockStore]) -> BlockStore:
    return open_store()


@pytest.fixture
def cache(model: Any, store: BlockStore) -> PrefixCache:
    return PrefixCache(model, store)


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> SetTime:
    return SetTime(monkeypatch)
