"""What holds for every test: it leaves nothing behind, and a loaded machine fails no property."""

import gc
from collections.abc import Iterator

import hypothesis
import pytest

from kit import leaks
from kit.examples import EVERY_RUN, NIGHTLY

hypothesis.settings.register_profile(EVERY_RUN, deadline=None)
hypothesis.settings.register_profile(NIGHTLY, deadline=None)
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
def _nothing_is_left_behind() -> Iterator[None]:
    before = leaks.now()
    yield
    left = leaks.left_since(before)
    assert not left, f"left behind: {left}"
