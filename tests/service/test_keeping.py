"""What the service does to a directory when no server runs, and that beside it stores agree on a
budget as if it were not there."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.storage import FaultyDisk, Story, disk_usage, files_in, open_cold, set_budget
from kit.units import MIB
from omlx_cache.settings.derived import free_share
from omlx_cache.settings.machine import DiskSpace
from omlx_cache_daemon.service.configuration import read_configuration
from omlx_cache_daemon.service.keeping import KeepingTier
from omlx_cache_daemon.service.upkeep import Upkeep
from omlx_cache_storage.breaker import UNAVAILABLE
from omlx_cache_storage.cold.disk import FileSystem, StrPath
from omlx_cache_storage.cold.root import record_path
from omlx_cache_storage.cold.small_files import Budget, read_budget

PAGE = 64 * 1024


class Shrinking(FileSystem):
    """A disk on which others take what there is."""

    def __init__(self, directory: Path, size: int) -> None:
        super().__init__()
        self.directory, self.size = directory, size
        self.gives_back = True
        self._taken = PAGE

    def free_bytes(self, path: StrPath) -> int:
        if self.gives_back:
            self._taken = disk_usage(self.directory)
        return self.size - self._taken


def _keeper(directory: Path, limit: int = 64 * MIB, **options: object) -> KeepingTier:
    tier = KeepingTier(directory, limit, **{"derived": True, **options})  # type: ignore[arg-type]
    tier.open()
    return tier


def test_pages_leave_for_a_disk_that_others_fill_and_not_where_that_does_not_help(
    filled: Path,
) -> None:
    fs = Shrinking(filled, 64 * MIB)
    keeper = _keeper(filled, min_free_bytes=8 * MIB, fs=fs)
    assert keeper.keep() == 0
    fs.size = disk_usage(filled) + 7 * MIB
    assert 10 <= keeper.keep() <= 20
    assert fs.free_bytes(filled) >= 8 * MIB
    assert keeper.keep() == 0
    pages = keeper.usage().pages
    fs.gives_back, fs.size, fs._taken = False, 8 * MIB, PAGE
    keeper.keep()
    assert pages - 4 <= keeper.usage().pages < pages


def test_a_directory_that_is_gone_is_not_made_again_and_followed_when_it_is_back(
    filled: Path, story: Story
) -> None:
    keeper = _keeper(filled)
    moved = filled.with_name("elsewhere")
    filled.rename(moved)
    keeper.keep()
    keeper.keep()
    assert not filled.exists()
    assert keeper.usage().state.startswith(UNAVAILABLE)
    assert keeper.usage().pages == 0
    moved.rename(filled)
    keeper.keep()
    assert (keeper.usage().state, keeper.usage().pages) == ("ok", 40)
    shutil.rmtree(filled)
    keeper.keep()
    assert not filled.exists(), "a store is to make it, or a person"
    tier = open_cold(filled, 64 * MIB)
    tier.write(story.page(1), 10**18, story.document)
    keeper.keep()
    assert keeper.usage().pages == 1


def test_a_read_only_disk_is_followed_and_left_alone(filled: Path) -> None:
    class ReadOnly(FaultyDisk):
        def is_read_only(self, path: StrPath) -> bool:
            return True

    before = sorted(files_in(filled))
    keeper = _keeper(filled, fs=ReadOnly(), min_free_bytes=2**60)
    keeper.keep()
    assert keeper.usage().pages == 40
    assert sorted(files_in(filled)) == before


def _run(directory: Path, until: Callable[[Upkeep], bool] = lambda upkeep: True) -> Upkeep:
    """The service's upkeep of a directory, after it has done what is waited for."""
    upkeep = Upkeep(read_configuration({"cold_dir": str(directory)}, None, {}), lambda: None)
    upkeep.start()
    assert upkeep.opened.wait(30)
    deadline = time.monotonic() + 20
    while not until(upkeep) and time.monotonic() < deadline:
        # Somebody who looks on takes in what the service is to see.
        upkeep.tier.refresh()
        time.sleep(0.05)
    assert upkeep.stop(30)
    return upkeep


def test_what_is_to_stay_free_is_derived_for_the_disk_that_is_there_when_it_is_read(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upkeep = Upkeep(read_configuration({"cold_dir": str(filled)}, None, {}), lambda: None)
    mounted = DiskSpace(200 * MIB, 100 * MIB)
    monkeypatch.setattr("omlx_cache.settings.machine.disk_space", lambda path: mounted)
    upkeep.start()
    assert upkeep.opened.wait(30)
    assert upkeep.stop(30)
    assert upkeep.tier.evictor.min_free == free_share(mounted.total)


def test_a_directory_that_belongs_to_others_is_left_as_it_is(tmp_path: Path) -> None:
    foreign = tmp_path / "documents"
    foreign.mkdir()
    foreign.chmod(0o777)
    (foreign / "letter").write_text("dear")
    assert _run(foreign).tier.usage().state.startswith(UNAVAILABLE)
    assert [path.name for path in foreign.iterdir()] == ["letter"]


def test_an_empty_place_whose_disk_is_not_mounted_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "disk"
    place.mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    memory = read_configuration({"cold_dir": str(place)}, None, {}).settings.machine.state_dir
    record = Path(record_path(memory, str(place)))
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"identity": "ab" * 16, "mount": str(place)}))
    assert "nothing is mounted" in _run(place).tier.usage().state
    assert list(place.iterdir()) == []


def test_a_lowered_quota_is_seen_by_a_running_service(filled: Path) -> None:
    def lowered(upkeep: Upkeep) -> bool:
        if (read_budget(filled) or Budget(0, "quota")).nbytes != MIB:
            set_budget(filled, Budget(MIB, "quota"))
        return disk_usage(filled) <= MIB

    _run(filled, lowered)
    assert disk_usage(filled) <= MIB


def test_a_directory_that_went_away_is_noticed_before_the_next_look(filled: Path) -> None:
    def is_noticed(upkeep: Upkeep) -> bool:
        if filled.exists():
            filled.rename(filled.with_name("elsewhere"))
        return upkeep.tier.usage().state.startswith(UNAVAILABLE)

    assert is_noticed(_run(filled, is_noticed))


@pytest.mark.parametrize("with_service", [False, True])
@pytest.mark.parametrize("figure", [2 * MIB, 32 * MIB])
def test_a_lone_store_that_is_restarted_with_another_figure_sets_it(
    tmp_path: Path, story: Story, with_service: bool, figure: int
) -> None:
    keeper = _keeper(tmp_path) if with_service else None
    first = open_cold(tmp_path, 8 * MIB)
    for number in range(1, 61):
        assert first.write(story.page(number), 10**18, story.document) == "written"
    first.close()
    if keeper is not None:
        keeper.keep()
    second = open_cold(tmp_path, figure)
    assert read_budget(tmp_path) == Budget(figure, "store")
    assert second.usage().nbytes <= figure
    assert (second.usage().pages == 60) == (figure > 8 * MIB)
    if keeper is not None:
        keeper.keep()
        assert keeper.usage().limit_bytes == figure
        assert keeper.usage().nbytes == second.usage().nbytes


@pytest.mark.parametrize("derived", [False, True])
@pytest.mark.parametrize("set_by", ["store", "quota", "free space"])
def test_the_service_replaces_no_figure_that_somebody_chose(
    tmp_path: Path, set_by: str, derived: bool
) -> None:
    open_cold(tmp_path, 8 * MIB, derived=set_by == "free space").close()
    if set_by == "quota":
        set_budget(tmp_path, Budget(8 * MIB, "quota"))
    keeper = _keeper(tmp_path, 2 * MIB, derived=derived)
    if set_by != "free space" or derived:
        assert read_budget(tmp_path) == Budget(8 * MIB, set_by)  # type: ignore[arg-type]
        assert keeper.usage().limit_bytes == 8 * MIB
        return
    # Nobody chose one: it is the service's to give, and to change after a restart and a reload.
    assert read_budget(tmp_path) == Budget(2 * MIB, "store")
    assert keeper.limits.set_before == 2 * MIB
    keeper.close()
    again = KeepingTier(tmp_path, 4 * MIB)
    again.limits.set_before = 2 * MIB
    again.open()
    assert read_budget(tmp_path) == Budget(4 * MIB, "store")
    assert again.has_limits(3 * MIB, 0, lambda used: 3 * MIB, derived=False)
    assert read_budget(tmp_path) == Budget(3 * MIB, "store")
