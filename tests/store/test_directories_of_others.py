"""A cold directory that another user could fill: off, with the reason; memory goes on."""

import logging
import os
import shutil
from pathlib import Path

import pytest

from kit.storage import Story, commit, files_in, is_right, open_store, settings
from omlx_cache import BlockStore

STRANGER = 12_345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")


def _state(store: BlockStore) -> str:
    cold = store.stats().cold
    assert cold is not None
    return cold.state


@as_root
def test_pages_that_another_user_planted_are_not_served(tmp_path: Path) -> None:
    """Sound files of the right names and checksums, in a directory that is the planter's."""
    story, cold = Story(), tmp_path / "cold"
    with open_store(cold) as planter:
        commit(planter, story, 1, 2, 3)
        assert planter.flush(30)
    for path in (cold, *cold.rglob("*")):
        os.chown(path, STRANGER, STRANGER)
    with open_store(cold) as store:
        assert all(store.find(page) is None for page in story.ids(1, 2, 3))
        assert _state(store).startswith(f"unavailable: {cold} is not a directory of this user's")
    # The directory alone changes hands: its files are still the planter's.
    os.chown(cold, os.geteuid(), os.getegid())
    for place in cold.iterdir():
        if place.is_dir():
            os.chown(place, os.geteuid(), os.getegid())
            for shard in place.iterdir():
                os.chown(shard, os.geteuid(), os.getegid())
    with open_store(cold) as store:
        assert all(store.find(page) is None for page in story.ids(1, 2, 3))
        usage = store.stats().cold
        assert usage is not None
        assert (usage.state, usage.ignored_files) == ("ok", 3)
        assert store.stats().to_dict()["cold"]["ignored_files"] == 3  # type: ignore[index]


def test_a_directory_open_to_others_is_off_until_it_is_made_private(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    story, cold = Story(), tmp_path / "cold"
    with open_store(cold) as store:
        commit(store, story, 1, 2)
        assert store.flush(30)
    cold.chmod(0o777)
    assert any("chmod 700" in note for note in settings(cold).notes())
    caplog.set_level(logging.WARNING)
    with open_store(cold) as store:
        assert commit(store, story, 1, 2, 3) == [True] * 3
        assert not store.flush(30)
        assert all(is_right(store, page, story.nbytes) for page in story.ids(1, 2, 3))
        assert "chmod 700" in _state(store)
        assert len(files_in(cold)) == 2
        told = [r for r in caplog.records if "chmod 700" in r.getMessage()]
        assert [r.getMessage().split(":")[0] for r in told].count("no cold tier") == 1
        cold.chmod(0o700)
        assert store.flush(30)
        assert _state(store) == "ok"
        assert len(files_in(cold)) == 3


def test_a_directory_that_is_opened_to_others_while_running_is_off_until_it_is_made_private(
    tmp_path: Path,
) -> None:
    story, cold = Story(), tmp_path / "cold"
    with open_store(cold) as store:
        commit(store, story, 1)
        assert store.flush(30)
        cold.chmod(0o777)
        assert store.cold is not None
        store.cold.settle()
        assert "chmod 700" in _state(store), "also when there is nothing to write"
        commit(store, story, 2)
        assert not store.flush(30)
        assert len(files_in(cold)) == 1
        cold.chmod(0o700)
        assert store.flush(30)
        assert _state(store) == "ok"
        assert len(files_in(cold)) == 2
        assert all(is_right(store, page, story.nbytes) for page in story.ids(1, 2))


@as_root
def test_a_directory_exchanged_by_another_user_while_running_is_refused(tmp_path: Path) -> None:
    story, cold = Story(), tmp_path / "cold"
    with open_store(tmp_path / "theirs") as planter:
        commit(planter, Story("planted"), 1)
        assert planter.flush(30)
    with open_store(cold) as store:
        commit(store, story, 1)
        assert store.flush(30)
        cold.rename(tmp_path / "mine")
        (tmp_path / "theirs").rename(cold)
        os.chown(cold, STRANGER, STRANGER)
        commit(store, story, 2)
        assert not store.flush(30)
        assert store.find(Story("planted").id(1)) is None
        assert len(files_in(cold)) == 1
        assert _state(store).startswith("unavailable: ")
        shutil.rmtree(cold)
        (tmp_path / "mine").rename(cold)
        assert store.flush(30)
        assert _state(store) == "ok"
        assert len(files_in(cold)) == 2
