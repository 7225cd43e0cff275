"""Reading every page of a directory finds what is wrong with any, and nothing where nothing is."""

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.storage import Story, files_in, open_cold
from kit.storage.signed import signed_header, split_header
from omlx_cache_daemon import checking
from omlx_cache_daemon.checking import Checked, Pace, check_pages
from omlx_cache_storage.cold.disk import FileSystem, StrPath

KIB = 1024


@pytest.fixture
def story(tmp_path: Path) -> Story:
    """Twelve pages in a directory; some not a whole number of blocks of the disk long."""
    story = Story(nbytes=4 * KIB + 7)
    tier = open_cold(tmp_path / "cold")
    for number in range(1, 13):
        page = story.page(number, nbytes=3 * 1024 * KIB if number == 12 else 0)
        assert tier.write(page, number * 10**9, story.document) == "written"
    return story


def _checked(tmp_path: Path, **options: object) -> list[Checked]:
    return list(check_pages(tmp_path / "cold", **options))  # type: ignore[arg-type]


def _wrong(tmp_path: Path) -> dict[str, tuple[str, str | None]]:
    found = _checked(tmp_path)
    return {c.path.name: (c.verdict, c.trouble) for c in found if c.trouble is not None}


@pytest.mark.usefixtures("story")
def test_sound_pages_are_all_found_good_in_the_order_of_their_places(tmp_path: Path) -> None:
    found = _checked(tmp_path)
    assert [c.trouble for c in found] == [None] * 12
    assert [c.path for c in found] == files_in(tmp_path / "cold")
    assert all(c.page is not None and c.nbytes == c.page.nbytes for c in found)
    assert sum(c.nbytes for c in found) >= 3 * 1024 * KIB


@pytest.mark.usefixtures("story")
def test_it_goes_on_behind_any_place_and_misses_none(tmp_path: Path) -> None:
    everything = _checked(tmp_path)
    for number, checked in enumerate(everything):
        rest = _checked(tmp_path, after=checked.place)
        assert [c.file for c in rest] == [c.file for c in everything[number + 1 :]]


@pytest.mark.parametrize(
    ("spoil", "verdict", "why"),
    [
        (lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]), "damaged", "checksum"),
        (lambda raw: raw[:-5], "damaged", "cut off"),
        (lambda raw: raw[:9000], "damaged", "the header should have"),
        (lambda raw: raw + b"more", "damaged", "too long"),
        (lambda raw: b"", "damaged", "at least 8 bytes"),
        (lambda raw: b"\xff" * 8 + raw[8:], "damaged", "a header ends at"),
        (lambda raw: raw[:40] + b"X" + raw[41:], "damaged", "header"),
    ],
)
@pytest.mark.usefixtures("story")
def test_each_kind_of_damage_is_told_of_in_words(  # type: ignore[no-untyped-def]
    tmp_path: Path, spoil, verdict: str, why: str
) -> None:
    victim = files_in(tmp_path / "cold")[3]
    victim.write_bytes(spoil(victim.read_bytes()))
    wrong = _wrong(tmp_path)
    assert list(wrong) == [victim.name]
    assert wrong[victim.name][0] == verdict
    assert why in str(wrong[victim.name][1])


def test_a_sound_page_under_the_name_of_another_is_damage(tmp_path: Path, story: Story) -> None:
    one, other = files_in(tmp_path / "cold")[:2]
    other.write_bytes(one.read_bytes())
    assert _wrong(tmp_path) == {
        other.name: ("damaged", "the header describes another page than the name does")
    }


def test_what_stores_pass_over_is_foreign_and_not_damage(tmp_path: Path, story: Story) -> None:
    pages = files_in(tmp_path / "cold")
    pages[0].chmod(0o662)
    (pages[1].parent / ".DS_Store").write_bytes(b"?")
    moved = pages[2].parent.parent / "zz"
    moved.mkdir(mode=0o700)
    pages[2].rename(moved / pages[2].name)
    linked = pages[3]
    linked.rename(tmp_path / "elsewhere")
    linked.symlink_to(tmp_path / "elsewhere")
    assert _wrong(tmp_path) == {
        pages[0].name: ("foreign", "may be changed by other users (mode 0662)"),
        ".DS_Store": ("foreign", "does not have a page's name"),
        pages[2].name: ("foreign", "lies in the shard of other keys"),
        linked.name: ("foreign", "is no file"),
    }


@pytest.mark.usefixtures("story")
def test_directories_that_stores_do_not_look_into_are_told_of(tmp_path: Path) -> None:
    shard = files_in(tmp_path / "cold")[0].parent
    shard.chmod(0o777)
    (wrong,) = (c for c in _checked(tmp_path) if c.trouble)
    assert (wrong.path, wrong.verdict) == (shard, "foreign")
    assert wrong.trouble == "may be changed by other users (mode 0777)"
    shard.chmod(0o700)
    shard.parent.rename(tmp_path / "elsewhere")
    shard.parent.symlink_to(tmp_path / "elsewhere")
    assert [(c.path, c.trouble) for c in _checked(tmp_path)] == [(shard.parent, "is no directory")]


class _Unlistable(FileSystem):
    def __init__(self, name: str) -> None:
        self._name = name

    def scan(self, path: StrPath) -> Iterator[os.DirEntry[str]]:
        if os.path.basename(path) == self._name:
            raise OSError(13, "Permission denied")
        return super().scan(path)


@pytest.mark.usefixtures("story")
def test_a_directory_that_cannot_be_listed_does_not_hide_the_others(tmp_path: Path) -> None:
    shard = files_in(tmp_path / "cold")[0].parent
    found = _checked(tmp_path, fs=_Unlistable(shard.name))
    assert [(c.verdict, c.trouble) for c in found if c.trouble] == [
        ("unread", "cannot be listed: Permission denied")
    ]
    assert len(found) >= 11
    (of_all,) = _checked(tmp_path, fs=_Unlistable(shard.parent.name))
    assert of_all.path == shard.parent


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.usefixtures("story")
def test_another_users_page_is_foreign(tmp_path: Path) -> None:
    page = files_in(tmp_path / "cold")[0]
    os.chown(page, 12345, -1)
    assert _wrong(tmp_path) == {page.name: ("foreign", "belongs to user 12345")}


def test_a_page_of_a_later_version_and_one_that_the_disk_refuses_are_not_called_damaged(
    tmp_path: Path, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = files_in(tmp_path / "cold")[0]
    raw = later.read_bytes()
    fields, tensors = split_header(raw)
    later.write_bytes(signed_header({**fields, "format": "99"}, tensors))
    (wrong,) = _wrong(tmp_path).values()
    assert wrong[0] == "unread"
    assert "later version" in str(wrong[1])

    def refuse(fd: int, offset: int, buffer: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checking, "read_some", refuse)
    refused = _checked(tmp_path)
    assert {c.verdict for c in refused} == {"unread"}
    assert {c.trouble for c in refused} == {"cannot be read: Input/output error"}


def test_what_is_being_written_or_vanishes_meanwhile_is_no_trouble(
    tmp_path: Path, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = files_in(tmp_path / "cold")
    (pages[0].parent / ".tmp-1-abcdef-0").write_bytes(b"half")
    found = []
    for checked in check_pages(tmp_path / "cold"):
        found.append(checked)
        if len(found) == 1:
            for page in pages[1:]:
                page.unlink()
    assert [c.trouble for c in found] == [None]

    def vanish(fd: int, offset: int, buffer: object) -> int:
        pages[0].unlink(missing_ok=True)
        return 0

    monkeypatch.setattr(checking, "read_some", vanish)
    assert _checked(tmp_path) == []


def test_a_directory_that_is_missing_or_empty_has_no_pages(tmp_path: Path) -> None:
    assert list(check_pages(tmp_path / "nothing")) == []
    assert list(check_pages(tmp_path)) == []


def test_disks_that_cannot_read_past_the_cache_are_read_all_the_same(
    tmp_path: Path, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[int] = []
    monkeypatch.setattr(checking, "pass_cache_by", lambda fd: False)
    monkeypatch.setattr(checking, "drop_cached", dropped.append)
    assert [c.trouble for c in _checked(tmp_path)] == [None] * 12
    assert len(dropped) == 12


@pytest.mark.skipif(shutil.which("fincore") is None, reason="nobody says what is cached")
@pytest.mark.usefixtures("story")
def test_the_systems_file_cache_stays_as_it_is(tmp_path: Path) -> None:
    pages = files_in(tmp_path / "cold")
    os.sync()
    for page in pages[:6]:
        fd = os.open(page, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        direct = checking.pass_cache_by(fd)
        os.close(fd)
    before = _cached(pages)
    if not direct or any(before[:6]) or not all(before[6:]):
        pytest.skip("this file system has no reads past the cache, or no cache of its own")
    assert [c.trouble for c in _checked(tmp_path)] == [None] * 12
    assert _cached(pages) == before


def _cached(files: list[Path]) -> list[int]:
    """How many bytes of each file the system has in memory."""
    asked = ["fincore", "--noheadings", "--bytes", "--output", "RES", *map(str, files)]
    told = subprocess.run(asked, capture_output=True, text=True, check=True)
    return [int(count) for count in told.stdout.split()]


@pytest.mark.usefixtures("story")
def test_it_goes_at_its_pace(tmp_path: Path) -> None:
    size = sum(path.stat().st_size for path in files_in(tmp_path / "cold"))
    begun = time.monotonic()
    assert len(_checked(tmp_path, pace=Pace(size / 0.3))) == 12
    assert time.monotonic() - begun >= 0.25


@pytest.mark.usefixtures("story")
def test_a_stop_ends_a_wait_at_once_and_calls_nothing_damaged(tmp_path: Path) -> None:
    pace, found = Pace(KIB), list[Checked]()
    reader = threading.Thread(target=lambda: found.extend(_checked(tmp_path, pace=pace)))
    reader.start()
    pace.stop()
    reader.join(10)
    assert not reader.is_alive()
    assert [c.trouble for c in found] == [None] * len(found)
    assert len(found) < 12


class _Counting(FileSystem):
    def __init__(self) -> None:
        self.opened: set[int] = set()

    def open(self, path: StrPath) -> int:
        fd = super().open(path)
        self.opened.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self.opened.remove(fd)
        super().close(fd)


@pytest.mark.usefixtures("story")
def test_no_descriptor_stays_open_when_somebody_leaves_in_the_middle(tmp_path: Path) -> None:
    disk = _Counting()
    os.truncate(files_in(tmp_path / "cold")[0], 9000)
    for number, _ in enumerate(check_pages(tmp_path / "cold", fs=disk)):
        assert disk.opened == set()
        if number == 3:
            break
    assert disk.opened == set()


@pytest.mark.usefixtures("story")
def test_a_page_that_was_being_read_as_it_was_stopped_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace, read_some = Pace(), checking.read_some

    def stop_in_the_middle(fd: int, offset: int, buffer: memoryview) -> int:
        if offset:
            pace.stop()
        return read_some(fd, offset, buffer)

    monkeypatch.setattr(checking, "read_some", stop_in_the_middle)
    found = _checked(tmp_path, pace=pace)
    assert [c.trouble for c in found] == [None] * len(found)
    assert len(found) < 12
