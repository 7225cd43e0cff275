"""Beside the service stores agree on a budget as if it were not there."""

from pathlib import Path

import pytest

from kit.storage import Story, open_cold, set_budget
from omlx_cache_daemon.service.keeping import KeepingTier
from omlx_cache_storage.cold.budget import Budget
from omlx_cache_storage.cold.small_files import read_budget
from omlx_cache_storage.cold.tier import ColdTier

MIB = 2**20


def _store(directory: Path, limit: int, *, derived: bool = False) -> ColdTier:
    return open_cold(directory, limit, derived=derived)


def _keeper(directory: Path, limit: int = 64 * MIB, **options: object) -> KeepingTier:
    tier = KeepingTier(directory, limit, **{"derived": True, **options})  # type: ignore[arg-type]
    tier.open()
    return tier


@pytest.mark.parametrize("with_service", [False, True])
@pytest.mark.parametrize("figure", [2 * MIB, 32 * MIB])
def test_a_lone_store_that_is_restarted_with_another_figure_sets_it(
    tmp_path: Path, with_service: bool, figure: int
) -> None:
    keeper = _keeper(tmp_path) if with_service else None
    first = _store(tmp_path, 8 * MIB)
    story = Story(nbytes=64 * 1024)
    for number in range(1, 61):
        assert first.write(story.page(number), 10**18, story.document) == "written"
    first.close()
    if keeper is not None:
        keeper.keep()
    second = _store(tmp_path, figure)
    assert read_budget(tmp_path) == Budget(figure, "store")
    assert second.usage().nbytes <= figure
    assert (second.usage().pages == 60) == (figure > 8 * MIB)
    if keeper is not None:
        keeper.keep()
        assert keeper.usage().limit_bytes == figure
        assert keeper.usage().nbytes == second.usage().nbytes


def test_a_store_that_is_not_alone_sets_nothing_with_the_service_either(tmp_path: Path) -> None:
    keeper = _keeper(tmp_path)
    first = _store(tmp_path, 8 * MIB)
    _store(tmp_path, 2 * MIB)
    keeper.keep()
    assert read_budget(tmp_path) == Budget(8 * MIB, "store")
    assert first.usage().limit_bytes == keeper.usage().limit_bytes == 8 * MIB


@pytest.mark.parametrize("known", [Budget(8 * MIB, "store"), Budget(8 * MIB, "quota")])
def test_the_service_replaces_no_figure_that_somebody_chose(tmp_path: Path, known: Budget) -> None:
    _store(tmp_path, 8 * MIB).close()
    if known.set_by == "quota":
        set_budget(tmp_path, known)
    keeper = _keeper(tmp_path, 2 * MIB, derived=False)
    assert read_budget(tmp_path) == known
    assert keeper.usage().limit_bytes == 8 * MIB


def test_the_service_gives_a_budget_where_nobody_chose_one_and_changes_its_own(
    tmp_path: Path,
) -> None:
    _store(tmp_path, 8 * MIB, derived=True).close()
    keeper = _keeper(tmp_path, 4 * MIB, derived=False)
    assert read_budget(tmp_path) == Budget(4 * MIB, "store")
    assert keeper.set_before == 4 * MIB
    keeper.close()
    again = _keeper(tmp_path, 2 * MIB, derived=False, set_before=4 * MIB)
    assert read_budget(tmp_path) == Budget(2 * MIB, "store")
    assert again.has_limits(3 * MIB, 0, lambda used: 3 * MIB, derived=False)
    assert read_budget(tmp_path) == Budget(3 * MIB, "store")


def test_a_derived_figure_of_a_store_stays_while_the_service_has_none(tmp_path: Path) -> None:
    _store(tmp_path, 8 * MIB, derived=True).close()
    _keeper(tmp_path, 2 * MIB)
    assert read_budget(tmp_path) == Budget(8 * MIB, "free space")
