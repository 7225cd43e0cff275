"""Fixtures of the contract's tests: stores over one directory, and children that are ended."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.driving import Child, environment, settings
from kit.forks import CAN_FORK, parent
from omlx_cache import BlockStore


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cold"


@pytest.fixture
def open_store(directory: Path) -> Iterator[Callable[..., BlockStore]]:
    """Open a store over `directory`; all that are still open are closed at the end."""
    opened: list[BlockStore] = []

    def open_one(**fields: Any) -> BlockStore:
        opened.append(BlockStore(settings(directory, **fields)))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close(10)


@pytest.fixture(scope="session")
def _forking() -> None:
    """The process that forks lives as long as the run."""
    if CAN_FORK:
        parent()


@pytest.fixture
def child(_forking: None, tmp_path: Path) -> Iterator[Callable[..., Child]]:
    """Start Python programs; whatever still runs at the end is killed."""
    started: list[Child] = []

    def start(*arguments: str, roots: tuple[Path, ...] = (), **variables: str) -> Child:
        log = tmp_path / f"child-{len(started)}.log"
        given = {"OMLX_CACHE_RUNTIME_DIR": str(tmp_path / "run"), **variables}
        env = environment(*roots, **given)
        started.append(Child(arguments, env=env, log=log, forked=not roots))
        return started[-1]

    yield start
    for one in started:
        one.kill()
