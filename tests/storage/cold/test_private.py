"""What another user owns, or could have changed, is not indexed, not read and not deleted."""

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.storage import FaultyDisk, Story, expected_payload, files_in, open_cold, read_cold
from kit.units import DAY
from omlx_cache.control.cold_files import scan
from omlx_cache_daemon.changing import remove_namespace
from omlx_cache_storage.errors import PageUnreadable

STRANGER = 12_345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")


def _stored(directory: Path, story: Story, *numbers: int) -> None:
    with contextlib.closing(open_cold(directory)) as tier:
        for number in numbers:
            assert tier.write(story.page(number), DAY, story.document) == "written"


def _path(directory: Path, story: Story, number: int) -> Path:
    (path,) = files_in(directory, f"{story.id(number).key.hex()}*.safetensors")
    return path


def _give_away(path: Path) -> None:
    os.chown(path, STRANGER, STRANGER)


def _let_others_write(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o022)


def _let_the_group_write(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o020)


loosen = pytest.mark.parametrize(
    "loosen", [pytest.param(_give_away, marks=as_root), _let_others_write, _let_the_group_write]
)
Change = Callable[[Path], None]


@loosen
def test_a_directory_that_others_may_change_is_refused_with_the_remedy(
    tmp_path: Path, loosen: Change, caplog: pytest.LogCaptureFixture
) -> None:
    story, cold = Story(), tmp_path / "cold"
    _stored(cold, story, 1)
    loosen(cold)
    tier = open_cold(cold)
    usage = tier.usage()
    assert usage.state.startswith(f"unavailable: {cold} ")
    assert "chmod 700" in usage.state or "chown" in usage.state
    assert [r.getMessage() for r in caplog.records] == [f"no cold tier: {usage.state[13:]}"]
    assert (usage.pages, usage.nbytes) == (0, 0)
    with pytest.raises(PermissionError):
        tier.write(story.page(2), DAY, story.document)
    assert len(files_in(cold)) == 1
    assert len(caplog.records) == 1, "one line, not one for each page"
    os.chown(cold, os.geteuid(), os.getegid())
    cold.chmod(0o700)
    tier.settle()
    assert tier.usage().state == "ok"
    assert read_cold(tier, story.id(1)) == expected_payload(story.id(1), story.nbytes)
    assert tier.write(story.page(2), DAY, story.document) == "written"


def test_an_empty_directory_is_made_private_instead(tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    cold.mkdir()
    cold.chmod(0o777)
    _stored(cold, Story(), 1)
    assert stat.S_IMODE(cold.stat().st_mode) == 0o700


def test_a_directory_that_others_may_only_look_into_is_used(tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    _stored(cold, Story(), 1)
    cold.chmod(0o755)
    assert open_cold(cold).usage().pages == 1


@as_root
def test_a_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "cold").symlink_to(tmp_path / "mine")
    os.chown(tmp_path / "cold", STRANGER, STRANGER, follow_symlinks=False)
    assert "a link" in open_cold(tmp_path / "cold").usage().state
    assert list((tmp_path / "mine").iterdir()) == []


@loosen
@pytest.mark.parametrize("what", ["file", "shard", "namespace"])
def test_what_others_may_change_is_not_indexed_not_opened_and_not_deleted(
    tmp_path: Path, loosen: Change, what: str
) -> None:
    story, other = Story(), Story("other")
    _stored(tmp_path, story, 1)
    _stored(tmp_path, other, 1)
    path = _path(tmp_path, story, 1)
    loosen({"file": path, "shard": path.parent, "namespace": path.parents[1]}[what])
    disk, opened = FaultyDisk(), set[str]()
    disk.each["open"] = lambda path: opened.add(os.path.basename(path))
    tier = open_cold(tmp_path, fs=disk)
    assert (tier.usage().pages, tier.usage().ignored_files) == (1, 1)
    assert tier.info(story.id(1)) is None
    with pytest.raises(PageUnreadable):
        read_cold(tier, story.id(1))
    assert path.name not in opened
    assert [entry.page for entry in scan(tmp_path)] == other.ids(1)
    remove_namespace(tmp_path, story.namespace)
    tier.discard(story.ids(1))
    tier._index.limit_bytes = 0
    tier.settle()
    assert path.exists()
    assert tier.usage().pages == 0


@loosen
def test_a_file_that_is_exchanged_after_the_start_is_refused_when_it_is_opened(
    tmp_path: Path, loosen: Change
) -> None:
    story = Story()
    _stored(tmp_path, story, 1)
    tier = open_cold(tmp_path)
    path = _path(tmp_path, story, 1)
    loosen(path)
    with pytest.raises(PageUnreadable):
        read_cold(tier, story.id(1))
    assert path.exists()
    assert story.id(1) not in tier
    assert tier.usage().state == "ok"
    tier.check_integrity()


@loosen
def test_a_page_is_not_written_where_others_may_change_it(tmp_path: Path, loosen: Change) -> None:
    story = Story()
    _stored(tmp_path, story, 1)
    tier = open_cold(tmp_path)
    loosen(tmp_path / story.namespace.hex())
    with pytest.raises(PermissionError):
        tier.write(story.page(2), DAY, story.document)
    assert len(files_in(tmp_path)) == 1
    assert tier.usage().state.startswith("failing: ")


def test_a_page_is_not_written_through_a_link(tmp_path: Path) -> None:
    story, cold, elsewhere = Story(), tmp_path / "cold", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    tier = open_cold(cold)
    (cold / story.namespace.hex()).symlink_to(elsewhere)
    with pytest.raises(PermissionError, match="a link"):
        tier.write(story.page(1), DAY, story.document)
    assert list(elsewhere.iterdir()) == []
