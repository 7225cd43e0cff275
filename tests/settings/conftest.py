"""A machine that never changes."""

from pathlib import Path

import pytest

from kit.units import GIB
from omlx_cache.settings import DiskSpace, Machine


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
