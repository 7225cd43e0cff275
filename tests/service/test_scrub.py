"""The service reads all pages at a rate; damaged ones go, and everybody hears of it."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.storage import Story, files_in, open_cold
from omlx_cache_daemon.service.keeping import KeepingTier
from omlx_cache_daemon.service.scrub import Scrubber, StateFile
from omlx_cache_daemon.service.upkeep import FIGURES
from omlx_cache_storage.cold.disk import FileSystem, StrPath

PAGES = 40
DAY = 86_400


class _Scrub:
    """The scrubber of a service that has just begun."""

    def __init__(self, directory: Path) -> None:
        self.figures = dict.fromkeys(FIGURES, 0)
        self.state = StateFile(directory, FileSystem())
        self.state.take()
        self.scrubber = Scrubber(directory, FileSystem(), self.state, self.figures)

    def run(self) -> float:
        """Do what is due, to its end; return in how many seconds there is more to do."""
        while (wait := self.scrubber.step(7, 1e9)) < 60:
            time.sleep(wait)
        return wait


@pytest.fixture
def scrub(filled: Path) -> Iterator[_Scrub]:
    made = _Scrub(filled)
    yield made
    made.state.close()


def test_a_damaged_page_is_taken_out_and_stores_hear_of_it(
    filled: Path, scrub: _Scrub, story: Story
) -> None:
    tiers = [open_cold(filled), KeepingTier(filled, 64 * 2**20, derived=True)]
    tiers[1].open()
    (path,) = filled.rglob(f"{story.id(20).key.hex()}*")
    path.write_bytes(path.read_bytes()[:-8] + b"otherwis")
    scrub.run()
    assert not path.exists()
    counted = ("damaged_pages", "scrubbed_pages", "passes")
    assert [scrub.figures[name] for name in counted] == [1, PAGES, 1]
    for tier in tiers:
        tier.refresh()
        assert (tier.info(story.id(20)), tier.usage().pages) == (None, PAGES - 1)
        tier.close()


def test_a_pass_goes_on_after_a_restart_and_the_next_begins_days_later(
    filled: Path, scrub: _Scrub
) -> None:
    assert scrub.scrubber.step(7, 1e3) > 60
    assert scrub.scrubber.step(7, 1e6) < 1, "another rate counts at once"
    assert scrub.scrubber.step(7, 1e6) > 0, "it waits for its turn, and reads nothing"
    read = scrub.figures["scrubbed_pages"]
    assert 1 <= read <= 3
    scrub.state.close()
    again = _Scrub(filled)
    again.run()
    assert read + again.figures["scrubbed_pages"] == PAGES
    again.state.close()
    later = _Scrub(filled)
    assert 7 * DAY - 60 < later.run() <= 7 * DAY
    later.state.note(finished=time.time() - 8 * DAY)
    later.run()
    assert later.figures["scrubbed_pages"] == PAGES
    assert later.scrubber.step(7, 0) > DAY, "nothing is read at that rate"
    later.state.close()


def test_a_folder_that_cannot_be_listed_is_no_place_to_go_on_from(
    filled: Path, scrub: _Scrub, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = files_in(filled)[0].parent

    def refuse(self: FileSystem, path: StrPath) -> Iterator[os.DirEntry[str]]:
        if str(path) == str(shard):
            raise OSError(5, "Input/output error")
        return os.scandir(path)

    monkeypatch.setattr(FileSystem, "scan", refuse)
    scrub.scrubber.step(7, 1e6)
    assert scrub.state.kept.after.startswith(f"{shard.parent.name}/")
    scrub.run()
    assert scrub.figures["scrubbed_pages"] == PAGES - len(list(shard.iterdir()))


def test_an_empty_directory_is_no_pass(tmp_path: Path) -> None:
    scrub = _Scrub(tmp_path)
    assert 60 < scrub.run() <= 3600
    assert (scrub.figures["passes"], scrub.state.kept.finished) == (0, 0.0)


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[1]", b"[" * 4096, b'{"after": 3, "finished": 5}', b"\xff" * 4096]
)
def test_a_torn_file_of_the_service_begins_anew(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "keeper.json").write_bytes(raw)
    kept = _Scrub(tmp_path).state.kept
    assert (kept.after, kept.pid) == ("", os.getpid())


def test_leftovers_go_and_what_is_being_written_stays(filled: Path) -> None:
    keeper = KeepingTier(filled, 64 * 2**20, derived=True)
    keeper.open()
    shard = files_in(filled)[0].parent
    empty = shard.parent / "zz"
    empty.mkdir(mode=0o700)
    left = [place / f".tmp-999999999-ab-{place.name}" for place in (shard, filled)]
    for path in left:
        path.write_bytes(b"x")
    begun = shard / ".tmp-999999998-cd-1"
    fd = FileSystem().reserve(begun, 10)
    assert keeper.sweep() == 2
    os.close(fd)
    assert [path.exists() for path in (*left, empty, begun)] == [False, False, False, True]
    assert len(files_in(filled)) == PAGES


def test_a_file_that_cannot_be_deleted_leaves_the_others_to_the_sweep(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = KeepingTier(filled, 64 * 2**20, derived=True)
    keeper.open()
    left = [place / ".tmp-999999999-ab-1" for place in (filled, files_in(filled)[0].parent)]
    for path in left:
        path.write_bytes(b"x")

    def remove(self: FileSystem, path: StrPath) -> None:
        if str(path) == str(left[0]):
            raise PermissionError(1, "Operation not permitted")
        os.unlink(path)

    monkeypatch.setattr(FileSystem, "remove", remove)
    assert keeper.sweep() == 1
    assert [path.exists() for path in left] == [True, False]
