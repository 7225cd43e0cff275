"""Reading every page of a directory finds what is wrong with any, and nothing where nothing is."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.storage import Story, files_in, open_cold
from kit.storage.signed import signed_header, split_header
from kit.units import KIB
from omlx_cache.control.cold_files import scan
from omlx_cache_daemon import checking
from omlx_cache_daemon.checking import Checked, check_pages, remove_damaged
from omlx_cache_storage.cold.disk import FileSystem, StrPath
from omlx_cache_storage.format.names import LEDGER_FILE


@pytest.fixture
def pages(tmp_path: Path) -> list[Path]:
    """Twelve pages in a directory; some not a whole number of blocks of the disk long."""
    story = Story(nbytes=4 * KIB + 7)
    tier = open_cold(tmp_path / "cold")
    for number in range(1, 13):
        page = story.page(number, nbytes=3 * 1024 * KIB if number == 12 else 0)
        assert tier.write(page, number * 10**9, story.document) == "written"
    return files_in(tmp_path / "cold")


def _checked(tmp_path: Path, **options: object) -> list[Checked]:
    return list(check_pages(tmp_path / "cold", **options))  # type: ignore[arg-type]


def _later_version(raw: bytes) -> bytes:
    fields, tensors = split_header(raw)
    return signed_header({**fields, "format": "99"}, tensors)


def test_it_reads_all_pages_in_order_and_goes_on_behind_any_place(
    tmp_path: Path, pages: list[Path]
) -> None:
    found = _checked(tmp_path)
    assert [(Path(c.file), c.verdict, c.trouble) for c in found] == [(p, "good", "") for p in pages]
    assert sum(c.nbytes for c in found) >= 3 * 1024 * KIB
    for number, checked in enumerate(found):
        rest = _checked(tmp_path, after=checked.place)
        assert [c.file for c in rest] == [c.file for c in found[number + 1 :]]
    assert list(check_pages(tmp_path / "nothing")) == list(check_pages(tmp_path)) == []


@pytest.mark.parametrize(
    ("spoil", "verdict", "why"),
    [
        (lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]), "damaged", "checksum"),
        (lambda raw: raw[:-5], "damaged", "its header says"),
        (lambda raw: raw[:9000], "damaged", "the header should have"),
        (lambda raw: raw + b"more", "damaged", "its header says"),
        (lambda raw: b"", "damaged", "at least 8 bytes"),
        (lambda raw: b"\xff" * 8 + raw[8:], "damaged", "a header ends at"),
        (lambda raw: raw[:40] + b"X" + raw[41:], "damaged", "header"),
        (_later_version, "unread", "later version"),
    ],
)
def test_each_kind_of_damage_is_told_of_in_words(
    tmp_path: Path, pages: list[Path], spoil: Callable[[bytes], bytes], verdict: str, why: str
) -> None:
    pages[3].write_bytes(spoil(pages[3].read_bytes()))
    (wrong,) = (c for c in _checked(tmp_path) if c.trouble)
    assert (Path(wrong.file), wrong.verdict) == (pages[3], verdict)
    assert why in wrong.trouble


def test_a_sound_page_under_the_name_of_another_is_damage(
    tmp_path: Path, pages: list[Path]
) -> None:
    pages[1].write_bytes(pages[0].read_bytes())
    (wrong,) = (c for c in _checked(tmp_path) if c.verdict == "damaged")
    assert Path(wrong.file) == pages[1]


class _Failing(FileSystem):
    """A disk that refuses to list one directory."""

    def __init__(self, name: str) -> None:
        self._name = name

    def scan(self, path: StrPath) -> Iterator[os.DirEntry[str]]:
        if os.path.basename(path) == self._name:
            raise OSError(13, "Permission denied")
        return super().scan(path)


def test_what_the_disk_refuses_is_not_called_damaged_and_hides_nothing_else(
    tmp_path: Path, pages: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for refused in (pages[0].parent, pages[0].parent.parent):
        found = _checked(tmp_path, fs=_Failing(refused.name))
        assert [c for c in found if c.trouble] == [
            Checked(str(refused), None, "unread", "cannot be listed: Permission denied")
        ]
        assert len(found) == (1 if refused == pages[0].parent.parent else 12)

    def refuse(fd: int, buffers: object, offset: int) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", refuse)
    assert {(c.verdict, c.trouble) for c in _checked(tmp_path)} == {
        ("unread", "cannot be read: Input/output error")
    }


def test_what_is_being_written_or_vanishes_meanwhile_is_no_trouble(
    tmp_path: Path, pages: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (pages[0].parent / ".tmp-1-abcdef-0").write_bytes(b"half")
    os.truncate(pages[0], 9000)
    found = []
    for checked in check_pages(tmp_path / "cold"):
        found.append(checked.verdict)
        for page in pages[1:]:
            page.unlink(missing_ok=True)
    assert found == ["damaged"]

    def vanish(fd: int, buffers: object, offset: int) -> int:
        pages[0].unlink(missing_ok=True)
        return 0

    monkeypatch.setattr(os, "preadv", vanish)
    assert _checked(tmp_path) == []


def test_disks_that_cannot_read_past_the_cache_are_read_all_the_same(
    tmp_path: Path, pages: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[int] = []
    monkeypatch.setattr(checking, "pass_cache_by", lambda fd: False)
    monkeypatch.setattr(checking, "drop_cached", dropped.append)
    assert [c.verdict for c in _checked(tmp_path)] == ["good"] * len(dropped) == ["good"] * 12


@pytest.mark.skipif(shutil.which("fincore") is None, reason="nobody says what is cached")
def test_the_systems_file_cache_stays_as_it_is(tmp_path: Path, pages: list[Path]) -> None:
    os.sync()
    for page in pages[:6]:
        fd = os.open(page, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        direct = checking.pass_cache_by(fd)
        os.close(fd)
    before = _cached(pages)
    if not direct or any(before[:6]) or not all(before[6:]):
        pytest.skip("this file system has no reads past the cache, or no cache of its own")
    assert [c.verdict for c in _checked(tmp_path)] == ["good"] * 12
    assert _cached(pages) == before


def _cached(files: list[Path]) -> list[int]:
    """How many bytes of each file the system has in memory."""
    asked = ["fincore", "--noheadings", "--bytes", "--output", "RES", *map(str, files)]
    told = subprocess.run(asked, capture_output=True, text=True, check=True)
    return [int(count) for count in told.stdout.split()]


class _Healing(FileSystem):
    """A store writes the page anew after it was read, before the directory is had."""

    def __init__(self, whole: Path, page: Path) -> None:
        self._whole, self._page = whole, page

    def open(self, path: StrPath, *, writing: bool = False) -> int:
        if os.path.basename(path) == LEDGER_FILE and self._whole.exists():
            os.rename(self._whole, self._page)
        return super().open(path, writing=writing)


@pytest.mark.parametrize("healed", ["never", "before", "after it was read"])
def test_a_damaged_page_is_removed_and_none_that_was_written_anew(
    tmp_path: Path, pages: list[Path], healed: str
) -> None:
    page, whole, fs = pages[0], tmp_path / "whole", FileSystem()
    shutil.copy(page, whole)
    page.write_bytes(page.read_bytes()[:-1])
    (stored,) = (entry.stored for entry in scan(tmp_path / "cold") if entry.path == page)
    if healed == "before":
        os.rename(whole, page)
    elif healed == "after it was read":
        fs = _Healing(whole, page)
    removed = remove_damaged(tmp_path / "cold", [stored], fs)
    assert (removed, page.exists()) == ((1, False) if healed == "never" else (0, True))
    assert whole.exists() == (healed == "never")
    assert healed != "never" or remove_damaged(tmp_path / "cold", [stored]) == 0
