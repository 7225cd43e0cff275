"""When the budget is too small for a chain, the deep end is missing and never the root."""

from pathlib import Path

import pytest

from kit.storage import Story, open_cold, read_cold
from kit.units import KIB
from omlx_cache_storage.cold.tier import ColdTier

PAGE = 128 * KIB
LIMIT = 20 * 160 * KIB


@pytest.fixture
def long() -> Story:
    return Story("long", nbytes=PAGE, blocks=64)


def _open(directory: Path, limit: int = LIMIT) -> ColdTier:
    return open_cold(directory, limit)


def _numbers(tier: ColdTier, story: Story) -> list[int]:
    known = {story.id(number): number for number in range(1, 61)}
    return sorted(known[entry.page] for entry in tier.listing())


def test_of_a_chain_of_three_budgets_the_first_pages_survive_a_restart(
    tmp_path: Path, long: Story
) -> None:
    tier = _open(tmp_path)
    results = [tier.write(long.page(n), 10**18, long.document) for n in range(1, 61)]
    kept = results.count("written")
    assert results == ["written"] * kept + ["refused"] * (60 - kept)
    again = _open(tmp_path)
    assert _numbers(again, long) == list(range(1, kept + 1))
    assert kept * PAGE >= 0.8 * LIMIT * PAGE / (160 * KIB)
    for number in range(1, kept + 1):
        assert read_cold(again, long.id(number)) == long.page(number).payload


def test_a_smaller_page_does_not_fill_the_gap_behind_a_refused_one(
    tmp_path: Path, long: Story
) -> None:
    tier = _open(tmp_path)
    for number in (1, 2, 3):
        assert tier.write(long.page(number), 10**18, long.document) == "written"
    tier._index.limit_bytes = tier.usage().nbytes + PAGE
    assert tier.write(long.page(4), 10**18, long.document) == "refused"
    small = long.page(5, nbytes=1 * KIB)
    assert tier.write(small, 10**18, long.document) == "refused"
    tier.discard(long.ids(1))
    assert tier.write(small, 10**18, long.document) == "written"
