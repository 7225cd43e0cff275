"""What holds for every test: it leaves nothing behind, and a loaded machine fails no property."""

import gc

import hypothesis
import pytest

from kit.examples import EVERY_RUN, NIGHTLY

pytest_plugins = ["kit.watchdog"]

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
