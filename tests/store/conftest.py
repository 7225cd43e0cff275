"""A store's settings come from the test alone."""

import os

import pytest


@pytest.fixture(autouse=True)
def _no_settings_in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("OMLX_CACHE_"):
            monkeypatch.delenv(name)
