"""When the budget is too small for a chain, the deep end is missing and never the root."""

from pathlib import Path

import pytest

from kit.storage import FaultyDisk, Story, disk_usage, files_in, open_cold, read_cold
from omlx_cache_storage.cold.tier import ColdTier

KIB = 1024
PAGE = 128 * KIB
LIMIT = 20 * 160 * KIB
BIG = 2**30


@pytest.fixture
def long() -> Story:
    return Story("long", nbytes=PAGE, blocks=64)


def _open(directory: Path, limit: int = LIMIT) -> ColdTier:
    return open_cold(directory, limit)


def _numbers(tier: ColdTier, story: Story) -> list[int]:
    known = {story.id(number): number for number in range(1, 61)}
    return sorted(known[entry.page] for entry in tier.entries())


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


def test_a_refusal_is_counted_and_is_no_failure_of_the_disk(tmp_path: Path, long: Story) -> None:
    tier = _open(tmp_path)
    for number in range(1, 61):
        tier.write(long.page(number), 10**18, long.document)
    usage = tier.usage()
    assert usage.refused_pages == 60 - usage.pages
    assert (usage.state, usage.evicted_pages) == ("ok", 0)
    assert not tier.refuses_writes
    assert disk_usage(tmp_path) <= usage.nbytes <= LIMIT
    tier.check_integrity()


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


def test_a_newer_chain_drives_out_an_older_one_from_its_deep_end(
    tmp_path: Path, long: Story
) -> None:
    tier = _open(tmp_path)
    old = Story("old", nbytes=PAGE)
    for number in range(1, 11):
        assert tier.write(old.page(number), 10**18, old.document) == "written"
    for number in range(1, 13):
        assert tier.write(long.page(number), 10**18 + 1, long.document) == "written"
    left = [number for number in range(1, 11) if old.id(number) in tier]
    assert left == list(range(1, len(left) + 1))
    assert 0 < len(left) < 10
    older = Story("older", nbytes=PAGE)
    assert tier.write(older.page(1), 10**18 - 1, older.document) == "refused"


def test_a_page_of_a_newer_stamp_evicts_even_a_root(tmp_path: Path, long: Story) -> None:
    tier = _open(tmp_path)
    for number in range(1, 61):
        tier.write(long.page(number), 10**18, long.document)
    newer = Story("newer", nbytes=PAGE)
    for number in range(1, 31):
        tier.write(newer.page(number), 10**18 + 1, newer.document)
    assert long.id(1) not in tier
    assert newer.id(1) in tier
    assert tier.usage().evicted_pages > 0


def test_demoted_pages_give_way_to_pages_that_were_refused_before(
    tmp_path: Path, long: Story
) -> None:
    tier = _open(tmp_path)
    number = 1
    while tier.write(long.page(number), 10**18, long.document) == "written":
        number += 1
    tier.demote(long.ids(1))
    assert tier.write(long.page(number), 10**18, long.document) == "written"
    assert long.id(1) not in tier


def test_a_shortage_of_free_space_refuses_the_deep_end_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long: Story
) -> None:
    disk = FaultyDisk()
    tier = open_cold(tmp_path, fs=disk, min_free_bytes=1024 * KIB)
    capacity = disk_usage(tmp_path) + 1024 * KIB + 6 * 160 * KIB
    monkeypatch.setattr(disk, "free_bytes", lambda path: capacity - disk_usage(tmp_path))
    results = [tier.write(long.page(n), 10**18, long.document) for n in range(1, 12)]
    kept = results.count("written")
    assert 3 <= kept <= 6
    assert results == ["written"] * kept + ["refused"] * (11 - kept)
    assert tier.usage().state == "ok"
    monkeypatch.setattr(disk, "free_bytes", lambda path: BIG)
    assert tier.write(long.page(kept + 1), 10**18, long.document) == "written"


def test_a_page_that_holds_more_replaces_its_earlier_version_in_a_full_tier(
    tmp_path: Path, long: Story
) -> None:
    tier = _open(tmp_path)
    assert tier.write(long.page(1, held=8), 10**18, long.document) == "written"
    for number in range(2, 61):
        tier.write(long.page(number), 10**18 + 1, long.document)
    assert tier.write(long.page(1, held=16), 10**18 + 1, long.document) == "written"
    assert tier.write(long.page(1, held=16), 10**18 + 1, long.document) == "present"
    assert len([p for p in files_in(tmp_path) if long.id(1).key.hex() in p.name]) == 1
