"""Rounds small enough for every test run."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qa.chaos.tally import Tally
from qa.chaos.world import World


@pytest.fixture(autouse=True)
def _records_hold_no_arrays() -> Iterator[None]:
    """pytest keeps what is logged, errors with their frames and what those hold included."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def tally() -> Tally:
    return Tally()


@pytest.fixture
def world(tally: Tally, tmp_path: Path) -> Callable[..., World]:
    """Makes worlds whose rounds are short and repeatable."""

    def make(fault: str, *, number: int = 0, sessions: int = 24, grace: float = 20.0) -> World:
        directory = tmp_path / f"{fault}-{number}"
        directory.mkdir()
        return World(fault, number, 7, tally, directory, sessions=sessions, grace=grace)

    return make
