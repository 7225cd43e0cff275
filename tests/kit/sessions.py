"""Fixtures of every test: a model, a store, and a cache of one in the other; a sequence of pages, a
disk that fails, clocks to set, a directory for sockets, and the process that forks others."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit import zoo
from kit.drive import settings
from kit.examples import some
from kit.forks import CAN_FORK, parent
from kit.storage import FaultyDisk, HandClock, SetTime, Story
from kit.trees import short_directory
from omlx_cache import BlockStore, PrefixCache

Opener = Callable[..., BlockStore]
"""Opens a store, with other settings than those of a private one."""


@pytest.fixture(params=some(["llama", "qwen3"], "llama"))
def model(request: pytest.FixtureRequest) -> Any:
    """A real model with KVCache layers only."""
    return zoo.build(request.param)


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Opener]:
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
def store(open_store: Opener) -> BlockStore:
    return open_store()


@pytest.fixture
def cache(model: Any, store: BlockStore) -> PrefixCache:
    return PrefixCache(model, store)


@pytest.fixture
def stores(request: pytest.FixtureRequest) -> Iterator[dict[int, BlockStore]]:
    """One store in memory for each block size of the module's `BLOCKS`."""
    opened = {
        block: BlockStore(settings(Path("unused"), block_size=block, hot_cache_only=True))
        for block in request.module.BLOCKS
    }
    yield opened
    for store in opened.values():
        store.hot.check_integrity()
        assert store.stats().snapshots.live == 0
        store.close()


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    with short_directory() as path:
        yield path


@pytest.fixture(scope="session")
def forks() -> None:
    """The process that forks others outlives the test that needs it first."""
    if CAN_FORK:
        parent()


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
