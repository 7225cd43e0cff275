"""A machine that never changes, and an environment without settings."""

import os
from pathlib import Path

import pytest

from kit.units import GIB
from omlx_cache.settings import DiskSpace, Machine


@pytest.fixture(autouse=True)
def _no_settings_in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("OMLX_CACHE_"):
            monkeypatch.delenv(name)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A Mac with 32 GiB of memory and 400 of 1,000 GiB free."""
    return Machine(
        system="Darwin",
        physical_bytes=32 * GIB,
        limit_bytes=None,
        home=tmp_path,
        default_cold_dir=tmp_path / "Library" / "Caches" / "omlx-cache",
        disk=lambda path: DiskSpace(total=1000 * GIB, free=400 * GIB),
    )
