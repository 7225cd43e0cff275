"""`move` brings a cold directory to another disk whole, or leaves the old one as it was."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.output import check_output
from kit.storage import Story, fetch, files_in, open_store
from kit.storage.mounts import small_disk
from omlx_cache import BlockStore
from omlx_cache_daemon import moving
from omlx_cache_daemon.cli import main
from omlx_cache_daemon.errors import CommandError
from omlx_cache_storage.cold.budget import Budget
from omlx_cache_storage.cold.copying import Copied
from omlx_cache_storage.cold.disk import Durability, FileSystem, StrPath
from omlx_cache_storage.cold.quota import change_budget
from omlx_cache_storage.cold.removal import entries
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.page import PageId

from .conftest import Cli

KIB = 1024
PAGES = 12
_KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from omlx_cache import BlockStore
from omlx_cache_daemon import moving

left = int(sys.argv[3])

def dying(call):
    def counted(*args, **options):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **options)
    return counted

real = os.rename
os.rename = dying(lambda one, other: across(one, other))
shutil.rmtree = dying(shutil.rmtree)
os.unlink = dying(os.unlink)

def across(one, other):
    # As between two disks.
    if Path(other) == Path(sys.argv[2]) and Path(one) == Path(sys.argv[1]):
        raise OSError(18, "another disk")
    real(one, other)

move = moving.planned(Path(sys.argv[1]), Path(sys.argv[2]), keep=False)
if not moving.finish_earlier(move):
    for _ in moving.carry_out(move):
        pass
print("done")
"""


@pytest.fixture
def story(tmp_path: Path) -> Story:
    """A directory with pages, a budget and a ledger, as stores leave it."""
    story = Story()
    tier = ColdTier(tmp_path / "cold", 2**30)
    tier.open()
    for number in range(1, PAGES + 1):
        tier.write(story.page(number), (100 + 7 * number % 13) * 10**9 + number, story.document)
    tier.close()
    change_budget(tmp_path / "cold", lambda known: Budget(2**29, "quota"))
    return story


@pytest.fixture
def two_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "_rename", lambda move, fs: False)


def _contents(directory: Path) -> dict[str, tuple[bytes, int, int]]:
    """Every file but the ledger with its bytes, its time and its mode."""
    found = {}
    for path in directory.rglob("*"):
        if path.is_file() and path.name != "ledger":
            info = path.stat()
            name = str(path.relative_to(directory))
            found[name] = path.read_bytes(), info.st_mtime_ns, info.st_mode & 0o777
    return found


def _move(source: Path, target: Path, *, keep: bool = False) -> moving.Move:
    move = moving.planned(source, target, keep=keep)
    if not moving.finish_earlier(move):
        for _ in moving.carry_out(move):
            pass
    return move


def test_a_move_on_one_disk_is_a_rename_and_says_what_to_set(
    cli: Cli, story: Story, tmp_path: Path
) -> None:
    before = _contents(tmp_path / "cold")
    identity = (tmp_path / "cold").stat().st_ino
    ended = cli("move", str(tmp_path / "new"))
    assert ended.code == 0, ended.err
    assert f"set OMLX_CACHE_COLD_DIR={tmp_path / 'new'} (the environment" in ended.out
    assert _contents(tmp_path / "new") == before
    assert (tmp_path / "new").stat().st_ino == identity
    assert not (tmp_path / "cold").exists()


@pytest.mark.usefixtures("story", "two_disks")
def test_a_copy_has_the_same_bytes_times_and_modes_and_the_old_directory_goes(
    tmp_path: Path,
) -> None:
    before = _contents(tmp_path / "cold")
    move = _move(tmp_path / "cold", tmp_path / "new")
    assert move.files == len(before)
    assert _contents(tmp_path / "new") == before
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "new").rglob("??")} == {0o700}
    assert sorted(os.listdir(tmp_path)) == ["new"]


@pytest.mark.usefixtures("two_disks")
def test_a_real_store_restores_everything_after_a_move_in_the_same_order_of_use(
    tmp_path: Path,
) -> None:
    story = Story("moved", blocks=24)
    with open_store(tmp_path / "cold") as store:
        for number in range(1, 20):
            store.put(story.page(number), granted=store.admit(story.nbytes))
        assert store.flush(60)
    with open_store(tmp_path / "cold") as store:
        order = _by_use(store)
    _move(tmp_path / "cold", tmp_path / "new")
    with open_store(tmp_path / "new") as store:
        assert _by_use(store) == order
        assert len(order) == 19
        for number in range(1, 20):
            assert fetch(store, story.id(number)) == bytes(story.page(number).payload)


def _by_use(store: BlockStore) -> list[PageId]:
    """The pages of a store's directory, the first to leave first."""
    assert store.cold_dir is not None
    found = entries(Path(store.cold_dir))
    found.sort(key=lambda entry: (entry.used_ns, -entry.stored.position))
    return [entry.page for entry in found]


@pytest.mark.usefixtures("two_disks")
def test_killed_at_any_point_it_goes_on_and_ends_with_everything_at_the_new_place(
    story: Story, tmp_path: Path
) -> None:
    before = _contents(tmp_path / "cold")
    source, target = tmp_path / "cold", tmp_path / "new"
    seen = []

    def files(directory: str) -> int:
        found = [path for path in (tmp_path / directory).rglob("*") if path.is_file()]
        return sum(not path.name.startswith(".tmp-") for path in found)

    def is_to_die(call: int) -> None:
        """Let it die before it gives, in its so many-th call, a file another name or deletes it."""
        ended = subprocess.run(
            [sys.executable, "-c", _KILLED, str(source), str(target), str(call)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            timeout=60,
        )
        assert ended.returncode == -9, ended.stderr
        seen.append(sorted(os.listdir(tmp_path)))
        if target.exists():
            there = _contents(target)
            assert {name: there[name] for name in before} == before, "no half directory"
        else:
            assert _contents(source) == before

    # The first call is refused, the second is that of the marker, the others are those of files.
    is_to_die(4)
    is_to_die(7)
    # One more for what the second left half written.
    is_to_die(4 + len(before) - (files(".new.moving") - 1))
    assert seen == [[".new.moving", "cold"]] * 3
    is_to_die(4)
    assert seen[3:] == [["cold", "new"]]
    is_to_die(6)
    # One file of the old directory, or its ledger, has gone then.
    is_to_die(3)
    assert files(".cold.moved") == len(before)
    is_to_die(2 + files(".cold.moved"))
    assert seen[4:] == [[".cold.moved", "new"]] * 2 + [["new"]]
    _move(source, target)
    assert _contents(target) == before
    assert sorted(os.listdir(tmp_path)) == ["new"]


@pytest.mark.usefixtures("story", "two_disks")
def test_a_full_disk_leaves_the_old_directory_whole_and_the_rest_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _contents(tmp_path / "cold")
    with small_disk(tmp_path / "disk", "size=200k") as disk:
        target = disk.path / "cache"
        with pytest.raises(CommandError, match="free, and"):
            _move(tmp_path / "cold", target)
        # Somebody else takes the room that there was.
        with monkeypatch.context() as patch:
            patch.setattr(FileSystem, "free_bytes", lambda self, path: 2**40)
            with pytest.raises(CommandError, match=r"No space left.*the same command goes on"):
                _move(tmp_path / "cold", target)
        assert _contents(tmp_path / "cold") == before
        assert not target.exists()
        came = len(files_in(disk.path))
        assert 0 < came < PAGES
        disk.remount("size=2m")
        _move(tmp_path / "cold", target)
        assert _contents(target) == before
        assert not (tmp_path / "cold").exists()
        assert os.listdir(disk.path) == ["cache"]


class _BadDisk(FileSystem):
    """Does not keep what is written to it."""

    def copy(self, source: int, path: StrPath, durability: Durability) -> None:
        super().copy(source, path, durability)
        with open(path, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\\xff" if file.read(1) != b"\\xff" else b"\\x00")


@pytest.mark.usefixtures("story", "two_disks")
def test_a_disk_that_returns_other_bytes_than_were_written_ends_the_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "FileSystem", _BadDisk)
    before = _contents(tmp_path / "cold")
    with pytest.raises(CommandError, match="is not what was written to it"):
        _move(tmp_path / "cold", tmp_path / "new")
    assert _contents(tmp_path / "cold") == before
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("story", "two_disks")
def test_damaged_pages_do_not_move_and_what_is_no_page_of_ours_stays_with_the_old_place(
    tmp_path: Path,
) -> None:
    pages = files_in(tmp_path / "cold")
    os.truncate(pages[0], 18 * KIB)
    move = _move(tmp_path / "cold", tmp_path / "one", keep=True)
    assert (move.damaged, move.left) == (1, [])
    assert len(files_in(tmp_path / "one")) == PAGES - 1
    assert (tmp_path / "cold").exists()
    (tmp_path / "cold" / "link").symlink_to("/dev/null")
    move = _move(tmp_path / "cold", tmp_path / "two")
    assert [one.path for one in move.left] == [str(tmp_path / "cold" / "link")]
    assert (tmp_path / "cold").exists()
    assert len(files_in(tmp_path / "two")) == PAGES - 1


def test_a_directory_that_a_store_uses_is_not_moved_and_the_store_is_named(
    story: Story, cli: Cli, tmp_path: Path
) -> None:
    with open_store(tmp_path / "cold"):
        # It has no socket: the lock that it holds tells.
        ended = cli("move", str(tmp_path / "new"))
    assert ended.code == 1
    assert "is in use: stop these first" in ended.err
    if sys.platform == "linux":
        assert f"process {os.getpid()}" in ended.err
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("story", "two_disks")
def test_while_it_moves_nobody_else_can_change_the_directory(tmp_path: Path) -> None:
    move = moving.planned(tmp_path / "cold", tmp_path / "new", keep=False)
    steps = moving.carry_out(move)
    next(steps)
    next(steps)
    disk = FileSystem()
    ledger = disk.open_shared(tmp_path / "cold" / "ledger")
    directory = disk.open_directory(tmp_path / "cold")
    try:
        assert not disk.try_lock(ledger)
        assert not disk.try_lock(directory, shared=True)
    finally:
        disk.close(ledger)
        disk.close(directory)
    assert list(steps)
    assert not (tmp_path / "cold").exists()


@pytest.mark.usefixtures("story")
def test_places_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("?")
    (tmp_path / "file").write_text("?")
    for place, why in (
        ("missing/new", "there is no directory"),
        ("full", "is not empty"),
        ("file", "is no directory"),
        ("cold", "lie in each other"),
        ("cold/inner", "lie in each other"),
    ):
        with pytest.raises(CommandError, match=why):
            _move(tmp_path / "cold", tmp_path / place)
    assert len(files_in(tmp_path / "cold")) == PAGES


@pytest.mark.usefixtures("story", "two_disks")
def test_interrupted_by_ctrl_c_it_says_what_goes_on_and_what_gives_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = moving.copy_directory

    def interrupted(source: Path, target: Path, fs: FileSystem) -> Iterator[Copied]:
        for number, file in enumerate(copied(source, target, fs)):
            if number == 5:
                raise KeyboardInterrupt
            yield file

    before = _contents(tmp_path / "cold")
    arguments = ["move", str(tmp_path / "new"), "--cold-dir", str(tmp_path / "cold")]
    with monkeypatch.context() as patch:
        patch.setattr(moving, "copy_directory", interrupted)
        assert main(arguments) == 130
    told = capsys.readouterr().err
    assert "the old directory is whole, and the same command goes on" in told
    assert str(tmp_path / ".new.moving") in told
    assert _contents(tmp_path / "cold") == before
    assert main([*arguments, "--format", "json"]) == 0
    assert _contents(tmp_path / "new") == before


@pytest.mark.usefixtures("story")
def test_as_json_it_is_one_document(cli: Cli, tmp_path: Path) -> None:
    ended = cli("move", str(tmp_path / "new"), "--keep", "--format", "json")
    assert ended.code == 0
    assert ended.err == ""
    document = json.loads(ended.out)
    check_output("move", document)
    assert document["old_is_there"] is True
    assert document["setting"] == f"OMLX_CACHE_COLD_DIR={tmp_path / 'new'}"
    assert document["files"] == len(_contents(tmp_path / "cold"))
