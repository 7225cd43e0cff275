"""While one request's prefix is read from a slow disk, the others decode."""

import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kit.examples import some
from kit.restoring import PagedDisk
from omlx_cache import BlockStore, CacheSettings, PrefixCache

from .conftest import model_of, prompt_of
from .test_batch import NEW, alone, batch_of, drain, serve

STORED = prompt_of(300, seed=50)
OTHER = prompt_of(90, seed=51)


@pytest.fixture
def disk() -> Iterator[PagedDisk]:
    disk = PagedDisk()
    yield disk
    disk.gate.set()


def open_store(directory: Path, disk: PagedDisk | None = None, **fields: Any) -> BlockStore:
    given = {"hot_bytes": "8MiB", "cold_bytes": "64MiB", "min_free_bytes": 0, "socket": "off"}
    settings = CacheSettings(cold_dir=directory, block_size=64, **{**given, **fields})
    return BlockStore(settings, filesystem=disk)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omlx_cache.begun.WAIT_SECONDS", 60.0)


@pytest.fixture(params=some(["qwen3", "gemma3_text", "qwen3_next"], "qwen3"))
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    model = model_of(request.param)
    with open_store(tmp_path) as store:
        serve(batch_of(model, store), [STORED])
    return model


def test_the_batch_goes_on_while_a_prefix_is_read(
    model: Any, tmp_path: Path, disk: PagedDisk
) -> None:
    expected = alone(model, [STORED, OTHER])
    with open_store(tmp_path, disk) as store:
        disk.hold = lambda position, group: True
        batch = batch_of(model, store)
        slow = batch.submit(STORED, max_tokens=NEW)
        quick = batch.submit(OTHER, max_tokens=NEW)
        assert disk.reached.acquire(timeout=30)
        answers: dict[int, list[int]] = {slow: [], quick: []}
        while len(answers[quick]) < NEW:
            for token in batch.next():
                answers[token.uid].append(token.token)
        assert answers[slow] == []
        assert len(batch) == 1
        disk.gate.set()
        assert [*drain(batch, [slow]), answers[quick]] == expected
        assert store.stats().requests.restored_tokens == len(STORED) - 1


def test_the_reference_scheduler_decodes_others_meanwhile(
    scheduler: ModuleType, model: Any, tmp_path: Path, disk: PagedDisk
) -> None:
    expected = alone(model, [STORED, OTHER])
    with open_store(tmp_path, disk) as store:
        disk.hold = lambda position, group: True
        made = scheduler.Scheduler(model, PrefixCache(model, store))
        answers: list[list[int]] = []

        def clients() -> None:
            # Something must be decoding, or the loop has nothing better to do than to wait.
            quick = made.submit(scheduler.Request(OTHER, max_tokens=NEW))
            first = quick.tokens.get()
            slow = made.submit(scheduler.Request(STORED, max_tokens=NEW))
            rest = quick.answer()
            waiting = not slow.done.is_set() and slow.tokens.empty()
            disk.gate.set()
            answers.extend([slow.answer(), [first, *rest]])
            assert waiting
            made.stop()

        thread = threading.Thread(target=clients)
        thread.start()
        made.run()
        thread.join()
        assert answers == expected
