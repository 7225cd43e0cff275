"""The service reads all pages at a rate; damaged ones go, and everybody hears of it."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.storage import Story, files_in
from omlx_cache_daemon.service.keeping import KeepingTier
from omlx_cache_daemon.service.scrub import Scrubber, StateFile
from omlx_cache_daemon.service.upkeep import FIGURES
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.format.names import page_path

MIB = 2**20
PAGES = 30
DAY = 86_400


class Kept:
    """A directory with pages, a store that has it open, and the service's parts."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.story = directory, Story(nbytes=64 * 1024)
        self.store = ColdTier(directory, 64 * MIB)
        self.store.open()
        for number in range(1, PAGES + 1):
            self.store.write(self.story.page(number), 10**18, self.story.document)
        self.keeper = KeepingTier(directory, 64 * MIB, derived=True)
        self.keeper.open()
        self.begin()

    def begin(self) -> None:
        """Begin as a service does that was restarted."""
        self.figures = dict.fromkeys(FIGURES, 0)
        self.state = StateFile(self.directory, FileSystem())
        self.state.take()
        self.scrubber = Scrubber(self.directory, FileSystem(), self.state, self.figures)

    def restart(self) -> None:
        self.state.close()
        self.begin()

    def damage(self, number: int) -> Path:
        stored = self.keeper.stored(self.story.id(number))
        assert stored is not None
        path = Path(page_path(self.directory, stored.namespace, stored.name))
        with path.open("r+b") as file:
            file.seek(-8, os.SEEK_END)
            file.write(b"otherwis")
        return path

    def run(self) -> float:
        """Do what is due, to its end; return in how many seconds there is more to do."""
        while (wait := self.scrubber.step(7, 1e9)) < 60:
            time.sleep(wait)
        return wait

    def close(self) -> None:
        for one in (self.state, self.keeper, self.store):
            one.close()


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path)
    yield made
    made.close()


def test_a_damaged_page_is_taken_out_and_stores_hear_of_it(kept: Kept) -> None:
    path = kept.damage(20)
    kept.run()
    assert not path.exists()
    counted = ("damaged_pages", "scrubbed_pages", "passes")
    assert [kept.figures[name] for name in counted] == [1, PAGES, 1]
    for tier in (kept.store, kept.keeper):
        tier.refresh()
    assert kept.store.info(kept.story.id(20)) is None
    assert kept.store.info(kept.story.id(21)) is not None
    assert kept.store.usage().nbytes == kept.keeper.usage().nbytes


def test_a_pass_goes_on_after_a_restart_and_the_next_begins_days_later(kept: Kept) -> None:
    assert kept.scrubber.step(7, 1e6) > 0.2
    assert kept.scrubber.step(7, 1e6) > 0, "it waits for its turn, and reads nothing"
    read = kept.figures["scrubbed_pages"]
    assert 1 <= read <= 3
    kept.restart()
    kept.run()
    assert read + kept.figures["scrubbed_pages"] == PAGES
    kept.restart()
    assert 7 * DAY - 60 < kept.run() <= 7 * DAY
    kept.state.note(finished=time.time() - 8 * DAY)
    kept.run()
    assert kept.figures["scrubbed_pages"] == PAGES
    assert kept.scrubber.step(7, 0) > DAY, "nothing is read at that rate"


def test_an_empty_directory_is_no_pass(kept: Kept) -> None:
    kept.store.discard([kept.story.id(number) for number in range(1, PAGES + 1)])
    kept.keeper.refresh()
    kept.run()
    assert (kept.figures["passes"], kept.state.kept.finished) == (0, 0.0)
    assert 0 < kept.scrubber.step(7, 1e9) <= 3600


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[1]", b"[" * 4096, b'{"after": 3, "finished": 5}', b"\xff" * 4096]
)
def test_a_torn_file_of_the_service_begins_anew(kept: Kept, raw: bytes) -> None:
    kept.state.close()
    (kept.directory / "keeper.json").write_bytes(raw)
    kept.begin()
    assert (kept.state.kept.after, kept.state.kept.pid) == ("", os.getpid())


def test_leftovers_go_and_what_is_being_written_stays(kept: Kept) -> None:
    shard = files_in(kept.directory)[0].parent
    empty = shard.parent / "zz"
    empty.mkdir(mode=0o700)
    left = [place / f".tmp-999999999-ab-{place.name}" for place in (shard, kept.directory)]
    for path in left:
        path.write_bytes(b"x")
    begun = shard / ".tmp-999999998-cd-1"
    fd = FileSystem().reserve(begun, 10)
    assert kept.keeper.sweep() == 2
    os.close(fd)
    assert [path.exists() for path in (*left, empty, begun)] == [False, False, False, True]
    assert len(files_in(kept.directory)) == PAGES
