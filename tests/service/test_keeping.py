"""What the service does to a directory when no server runs."""

import json
import shutil
import time
from pathlib import Path

import pytest

from kit.storage import FaultyDisk, Story, disk_usage, files_in, open_cold, set_budget
from omlx_cache_daemon.service.configuration import read_configuration
from omlx_cache_daemon.service.keeping import KeepingTier
from omlx_cache_daemon.service.upkeep import Upkeep
from omlx_cache_storage.cold.budget import Budget
from omlx_cache_storage.cold.disk import FileSystem, StrPath
from omlx_cache_storage.cold.health import UNAVAILABLE
from omlx_cache_storage.cold.root import record_path

MIB = 2**20
PAGE = 64 * 1024


class Shrinking(FileSystem):
    """A disk on which others take what there is."""

    def __init__(self, directory: Path, size: int) -> None:
        super().__init__()
        self.directory, self.size = directory, size
        self.gives_back = True
        self._taken = 0

    def free_bytes(self, path: StrPath) -> int:
        if self.gives_back:
            self._taken = disk_usage(self.directory)
        return self.size - self._taken


@pytest.fixture
def story() -> Story:
    return Story(nbytes=PAGE)


@pytest.fixture
def filled(tmp_path: Path, story: Story) -> Path:
    tier = open_cold(tmp_path / "cold", 64 * MIB)
    for number in range(1, 41):
        assert tier.write(story.page(number), 10**18 + number, story.document) == "written"
    tier.close()
    return tmp_path / "cold"


def _keeper(directory: Path, **options: object) -> KeepingTier:
    tier = KeepingTier(directory, 64 * MIB, **{"derived": True, **options})  # type: ignore[arg-type]
    tier.open()
    return tier


def test_a_quota_that_was_lowered_counts_at_the_next_look(filled: Path, story: Story) -> None:
    keeper = _keeper(filled)
    set_budget(filled, Budget(MIB, "quota"))
    keeper.keep()
    assert disk_usage(filled) <= MIB
    assert keeper.info(story.id(1)) is not None
    assert keeper.info(story.id(40)) is None


def test_pages_leave_for_a_disk_that_others_fill(filled: Path, story: Story) -> None:
    fs = Shrinking(filled, 64 * MIB)
    keeper = _keeper(filled, min_free_bytes=8 * MIB, fs=fs)
    assert keeper.keep() == 0
    fs.size = disk_usage(filled) + 7 * MIB
    assert 10 <= keeper.keep() <= 20
    assert fs.free_bytes(filled) >= 8 * MIB
    assert keeper.keep() == 0


def test_a_disk_that_deletion_does_not_help_is_not_emptied(filled: Path) -> None:
    fs = Shrinking(filled, 64 * MIB)
    keeper = _keeper(filled, min_free_bytes=8 * MIB, fs=fs)
    fs.gives_back = False
    fs.size = 8 * MIB
    fs._taken = PAGE
    keeper.keep()
    assert 36 <= keeper.usage().pages < 40


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
    assert keeper.usage().state == "ok"
    assert keeper.usage().pages == 40
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


def test_what_nobody_takes_note_of_is_not_kept(filled: Path) -> None:
    keeper = _keeper(filled)
    set_budget(filled, Budget(MIB, "quota"))
    keeper.keep()
    assert keeper.take_evicted() == []


def test_a_directory_that_belongs_to_others_is_left_as_it_is(tmp_path: Path) -> None:
    foreign = tmp_path / "documents"
    foreign.mkdir(mode=0o777)
    foreign.chmod(0o777)
    (foreign / "letter").write_text("dear")
    settings = read_configuration({"cold_dir": str(foreign)}, None, {})
    told: list[bool] = []
    upkeep = Upkeep(settings, lambda: told.append(True))
    upkeep.start()
    assert upkeep.opened.wait(30)
    assert upkeep.stop(30)
    assert upkeep.tier.usage().state.startswith(UNAVAILABLE)
    assert sorted(path.name for path in foreign.iterdir()) == ["letter"]
    assert told


def test_an_empty_place_whose_disk_is_not_mounted_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "disk"
    place.mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    settings = read_configuration({"cold_dir": str(place)}, None, {})
    memory = settings.settings.machine.state_dir
    assert memory is not None
    record = Path(record_path(memory, str(place)))
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"identity": "ab" * 16, "mount": str(place)}))
    upkeep = Upkeep(settings, lambda: None)
    upkeep.start()
    assert upkeep.opened.wait(30)
    assert upkeep.stop(30)
    assert "nothing is mounted" in upkeep.tier.usage().state
    assert list(place.iterdir()) == []


def test_a_lowered_quota_and_a_restored_directory_are_seen_by_a_running_service(
    filled: Path,
) -> None:
    upkeep = Upkeep(read_configuration({"cold_dir": str(filled)}, None, {}), lambda: None)
    upkeep.start()
    try:
        assert upkeep.opened.wait(30)
        set_budget(filled, Budget(MIB, "quota"))
        deadline = time.monotonic() + 20
        while disk_usage(filled) > MIB and time.monotonic() < deadline:
            # Somebody who looks on takes in what the service is to see.
            upkeep.tier.refresh()
            time.sleep(0.05)
        assert disk_usage(filled) <= MIB
    finally:
        assert upkeep.stop(30)
