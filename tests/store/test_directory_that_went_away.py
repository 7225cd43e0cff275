"""A directory that is unmounted, renamed or opened to others is not made elsewhere, nor used; it is
when it is back."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit.remote.processes import until
from kit.storage import (
    Story,
    commit,
    commit_to_disk,
    files_in,
    is_right,
    open_store,
    set_budget,
    state_of,
)
from kit.storage.mounts import small_disk
from kit.units import MIB
from omlx_cache import BlockStore
from omlx_cache.settings.machine import disk_space
from omlx_cache_storage.cold.small_files import Budget, read_budget


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's state directory of one test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@contextmanager
def disk_image(path: Path) -> Iterator[Path]:
    """A directory `disk` whose contents come and go by `mount` and `umount -l`."""
    with small_disk(path, "size=32m") as disk:
        yield disk.path


def _mount(image: Path, place: Path) -> None:
    subprocess.run(["mount", "--bind", str(image), str(place)], check=True)


def _unmount(place: Path) -> None:
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A place at which the disk `image` is mounted."""
    place = tmp_path / "mnt"
    place.mkdir()
    with disk_image(tmp_path / "image") as image:
        _mount(image, place)
        yield place
        while os.path.ismount(place):
            _unmount(place)


def _settle(store: BlockStore) -> str:
    """Have the store look at its directory; return what it says of it then."""
    assert store.writer.settle(30)
    usage = store.stats().cold
    return usage.state


def _gone(store: BlockStore, story: Story, text: str) -> None:
    """Assert that a store says that its directory is gone, and works from memory."""
    state = _settle(store)
    assert state.startswith("unavailable: ")
    assert text in state
    assert commit(store, story, 4, 5) == [True, True]
    assert not store.flush(10)
    assert all(is_right(store, page, story.nbytes) for page in story.ids(1, 2, 3, 4, 5))


def _back(store: BlockStore, story: Story) -> None:
    """Assert that a store goes on with its directory, and writes what that lacks."""
    assert _settle(store) == "ok"
    assert store.flush(30)
    store.hot.discard(story.ids(1, 2, 3, 4, 5))
    assert all(is_right(store, page, story.nbytes) for page in story.ids(1, 2, 3, 4, 5))


def _everything(place: Path) -> list[Path]:
    return sorted(place.rglob("*"))


@pytest.mark.parametrize("inside", ["cold", ""], ids=["on the disk", "the disk itself"])
def test_a_disk_that_is_unmounted_while_a_store_runs(
    disk: Path, story: Story, inside: str, caplog: pytest.LogCaptureFixture
) -> None:
    cold = disk / inside
    with open_store(cold) as store:
        set_budget(cold, Budget(20 * MIB, "quota"))
        commit_to_disk(store, story, 1, 2, 3)
        image = disk.with_name("image")
        before = _everything(image)
        _unmount(disk)
        _gone(store, story, "disk")
        assert _everything(disk) == [], "nothing is written in its place"
        assert _everything(image) == before
        assert [r.message for r in caplog.records if "no cold tier" in r.message]
        _mount(image, disk)
        _back(store, story)
        assert [r.message for r in caplog.records if "is there again" in r.message]
        assert read_budget(cold) == Budget(20 * MIB, "quota")
    assert len(files_in(cold)) == 5


def test_a_disk_that_is_back_is_written_to_without_a_pause(disk: Path, story: Story) -> None:
    with open_store(disk / "cold") as store:
        commit_to_disk(store, story, 1, 2, 3)
        image = disk.with_name("image")
        _unmount(disk)
        _gone(store, story, "disk")
        for _ in range(7):
            # Each doubles the pause: the last one is a minute.
            assert not store.flush(10)
        assert not store.cold.sharing.ledger.is_open
        _mount(image, disk)
        assert _settle(store) == "ok"
        assert commit(store, story, 6) == [True]
        until(lambda: len(files_in(disk)) > 3, seconds=20)


def test_a_disk_that_is_not_mounted_at_the_start_is_waited_for(
    disk: Path, story: Story, state: Path
) -> None:
    """An empty place is not taken for the cache that it had the last time."""
    with open_store(disk) as store:
        commit_to_disk(store, story, 1, 2, 3)
    _unmount(disk)
    with open_store(disk) as store:
        commit(store, story, 1, 2, 3)
        _gone(store, story, f"nothing is mounted at {disk}")
        assert _everything(disk) == []
        _mount(disk.with_name("image"), disk)
        _back(store, story)
    (record,) = (state / "omlx-cache" / "directories").iterdir()
    assert json.loads(record.read_text())["mount"] == str(disk)
    assert record.stat().st_mode & 0o777 == 0o600


def test_what_is_to_stay_free_is_derived_for_the_disk_that_comes(disk: Path, story: Story) -> None:
    """And not for the one below its mount point, whose share it has no room for."""
    with open_store(disk, min_free_bytes="auto") as store:
        commit_to_disk(store, story, 1, 2, 3)
    _unmount(disk)
    with open_store(disk, min_free_bytes="auto") as store:
        commit(store, story, 4, 5)
        assert _settle(store).startswith("unavailable: ")
        _mount(disk.with_name("image"), disk)
        assert _settle(store) == "ok"
        assert store.flush(30)
        assert len(files_in(disk)) == 5
        told = store.configuration()["settings"]["min_free_bytes"]
        assert told["value"] == disk_space(disk).total // 20


def test_an_empty_disk_in_the_place_of_the_one_that_went_is_not_used(
    tmp_path: Path, disk: Path, story: Story
) -> None:
    with open_store(disk / "cold") as store:
        commit_to_disk(store, story, 1, 2, 3)
        _unmount(disk)
        with small_disk(tmp_path / "other", "size=8m") as other:
            _mount(other.path, disk)
            _gone(store, story, "disk")
            assert _everything(disk) == []
            _unmount(disk)
        _mount(disk.with_name("image"), disk)
        _back(store, story)


def test_a_directory_that_is_renamed_is_used_again_when_it_has_its_name_back(
    tmp_path: Path, story: Story
) -> None:
    cold, moved = tmp_path / "cold", tmp_path / "moved"
    with open_store(cold) as store, open_store(cold) as peer:
        set_budget(cold, Budget(20 * MIB, "quota"))
        commit_to_disk(store, story, 1, 2, 3)
        cold.rename(moved)
        _gone(store, story, "mkdir")
        assert _settle(peer).startswith("unavailable: ")
        assert not cold.exists()
        assert len(files_in(moved)) == 3
        moved.rename(cold)
        _back(store, story)
        assert _settle(peer) == "ok"
        assert read_budget(cold) == Budget(20 * MIB, "quota")


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_directory_that_is_deleted_is_made_again_and_that_is_said_once(
    tmp_path: Path, story: Story, by_hand: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cold = tmp_path / "cold"
    with open_store(cold) as store:
        commit_to_disk(store, story, 1, 2, 3)
        set_budget(cold, Budget(20 * MIB, "quota"))
        shutil.rmtree(cold)
        if by_hand:
            cold.mkdir(0o700)
        assert _settle(store) == "ok"
        commit_to_disk(store, story, 4, 5)
        assert (cold / "CACHEDIR.TAG").is_file()
        assert read_budget(cold) != Budget(20 * MIB, "quota")
    (said,) = (r.message for r in caplog.records if "made again" in r.message)
    assert "quota" in said
    assert "pins" in said


def test_missing_parents_are_named_and_not_made_and_heal(tmp_path: Path, story: Story) -> None:
    above = tmp_path / "disk" / "caches"
    with open_store(above / "cold") as store:
        commit(store, story, 1, 2, 3)
        _gone(store, story, f"{tmp_path / 'disk'} is missing")
        assert not (tmp_path / "disk").exists()
        above.mkdir(parents=True)
        _back(store, story)


def test_the_systems_own_place_is_made_whole(
    tmp_path: Path, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / "caches"))
    with open_store(tmp_path / "home" / "caches" / "omlx-cache") as store:
        commit_to_disk(store, story, 1)
        assert _settle(store) == "ok"


def test_a_directory_that_is_opened_to_others_while_running_is_off_until_it_is_made_private(
    tmp_path: Path,
) -> None:
    story, cold = Story(), tmp_path / "cold"
    with open_store(cold) as store:
        commit_to_disk(store, story, 1)
        cold.chmod(0o777)
        store.cold.settle()
        assert "chmod 700" in state_of(store), "also when there is nothing to write"
        commit(store, story, 2)
        assert not store.flush(30)
        assert len(files_in(cold)) == 1
        cold.chmod(0o700)
        assert store.flush(30)
        assert state_of(store) == "ok"
        assert len(files_in(cold)) == 2
        assert all(is_right(store, page, story.nbytes) for page in story.ids(1, 2))


def test_somebodys_directory_gets_no_cache_and_an_old_cache_needs_no_ledger(
    tmp_path: Path, story: Story
) -> None:
    place = tmp_path / "cold"
    place.mkdir(mode=0o700)
    (place / "lost+found").mkdir()
    (place / "notes.txt").write_text("mine")
    with open_store(place) as store:
        commit(store, story, 1, 2, 3)
        _gone(store, story, "holds other files (notes.txt) and no cache")
        assert sorted(os.listdir(place)) == ["lost+found", "notes.txt"]
        (place / "notes.txt").unlink()
        _back(store, story)
    for file in place.iterdir():
        if file.is_file():
            file.unlink()
    (place / "notes.txt").write_text("mine")
    with open_store(place) as store:
        assert _settle(store) == "ok"
        assert all(is_right(store, page, story.nbytes) for page in story.ids(4, 5))
