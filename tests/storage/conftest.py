"""What holds for every test of a tier: it leaves its directory to others when it ends."""

import weakref
from collections.abc import Iterator

import pytest

from omlx_cache_storage.cold.tier import ColdTier


@pytest.fixture(autouse=True)
def _tiers_leave_their_directories(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    tiers: list[weakref.ref[ColdTier]] = []
    make = ColdTier.__init__

    def remembered(tier: ColdTier, *args: object, **options: object) -> None:
        make(tier, *args, **options)
        tiers.append(weakref.ref(tier))

    monkeypatch.setattr(ColdTier, "__init__", remembered)
    yield
    for known in tiers:
        if (tier := known()) is not None:
            tier.close()
