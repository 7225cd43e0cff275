"""What holds for every test: it leaves nothing behind, and a loaded machine fails no property."""

import atexit
import gc
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

import omlx_cache.settings.derived
import omlx_cache.store
from kit import locks
from kit.examples import EVERY_RUN, NIGHTLY
from omlx_cache.package import OWN_LOGGERS

pytest_plugins = ["kit.leaks", "kit.sessions"]

if not os.environ.get("OMLX_TEST_STATE"):
    # What stores remember of directories outlives them: it is no business of this user's.
    os.environ["XDG_STATE_HOME"] = os.environ["OMLX_TEST_STATE"] = tempfile.mkdtemp(prefix="os-")
    atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

for _name in [name for name in os.environ if name.upper().startswith("OMLX_CACHE_")]:
    # No test reads the settings of the person who runs it.
    del os.environ[_name]

# Programs that tests start import what tests can, in whatever directory they run.
os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)

# A machine that is short of memory disturbs no store.
omlx_cache.settings.derived.FREE_MEMORY_CAP = 0
# Nor is one that is short of processors: tests of disks that hang take back what others wait.
omlx_cache.store.OPEN_SECONDS = 60.0

hypothesis.settings.register_profile(EVERY_RUN, deadline=None, max_examples=30)
hypothesis.settings.register_profile(NIGHTLY, deadline=None, max_examples=200)
hypothesis.settings.load_profile(EVERY_RUN)


def pytest_collection_finish() -> None:
    """Take what the imports made, which lives as long as the run, out of every later collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _what_earlier_modules_left_is_not_collected_again() -> None:
    """Models, pytest's own reports and caches live as long as the run: walked at every collection,
    they make the tests that collect often several times slower at the end of a run."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _loggers_are_left_as_they_were() -> Iterator[None]:
    """Commands that run in the tests' process set levels of this project's loggers."""
    loggers = [logging.getLogger(name) for name in OWN_LOGGERS]
    known = [(logger.level, logger.propagate, logger.handlers[:]) for logger in loggers]
    yield
    for logger, (level, propagate, handlers) in zip(loggers, known, strict=True):
        logger.setLevel(level)
        logger.propagate, logger.handlers = propagate, handlers


@pytest.fixture(autouse=True)
def _locks_are_taken_in_one_order() -> Iterator[None]:
    yield
    errors = locks.take_errors()
    assert not errors, errors[0]
