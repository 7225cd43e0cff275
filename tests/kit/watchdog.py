"""A pytest plugin: a test that leaves something behind fails, and is told what."""

from collections.abc import Iterator

import pytest

from kit import leaks


def pytest_configure() -> None:
    leaks.mark_temporary_names()


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    before = leaks.now()
    yield
    left = leaks.left_since(before)
    assert not left, f"left behind: {left}"
