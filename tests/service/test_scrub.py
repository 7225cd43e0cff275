"""The service reads all pages at a rate; damaged ones go, and everybody hears of it."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.storage import Story, files_in
from omlx_cache_daemon.service.figures import Figures
from omlx_cache_daemon.service.keeping import KeepingTier
from omlx_cache_daemon.service.scrub import Scrubber
from omlx_cache_daemon.service.state import StateFile
from omlx_cache_daemon.service.sweep import empty_shards, leftovers
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.format.names import StoredPage, page_path

MIB = 2**20
PAGE = 64 * 1024
PAGES = 30


class Kept:
    """A directory with pages, a store that has it open, and the service's parts."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.story = directory, Story(nbytes=PAGE)
        self.store = ColdTier(directory, 64 * MIB)
        self.store.open()
        for number in range(1, PAGES + 1):
            self.store.write(self.story.page(number), 10**18, self.story.document)
        self.keeper = KeepingTier(directory, 64 * MIB, derived=True)
        self.keeper.open()
        self.begin()

    def begin(self) -> None:
        """Begin as a service does that was restarted."""
        self.figures, self.state = Figures(), StateFile(self.directory, FileSystem())
        self.state.take()
        self.scrubber = Scrubber(
            self.directory, FileSystem(), self.state, self.figures, self.keeper.drop_damaged
        )

    def count(self, name: str) -> int:
        return self.figures.to_dict()[name]

    def file(self, number: int) -> Path:
        stored = self.keeper.stored(self.story.id(number))
        assert isinstance(stored, StoredPage)
        return Path(page_path(self.directory, stored.namespace, stored.name))

    def run(self, days: float = 7.0) -> None:
        """Do what is due, to its end."""
        self.scrubber.step(days)
        if self.scrubber._thread is not None:
            self.scrubber._thread.join()

    def close(self) -> None:
        self.scrubber.stop(10)
        for one in (self.state, self.keeper, self.store):
            one.close()


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path)
    yield made
    made.close()


def _damage(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"otherwise"[:8])


def test_a_damaged_page_is_taken_out_and_stores_hear_of_it(kept: Kept) -> None:
    path = kept.file(20)
    _damage(path)
    kept.scrubber.has_rate(1e9)
    kept.run()
    assert not path.exists()
    assert kept.count("damaged_pages") == 1
    assert kept.count("scrubbed_pages") == PAGES
    assert kept.count("passes") == 1
    kept.store.refresh()
    assert kept.store.info(kept.story.id(20)) is None
    assert kept.store.info(kept.story.id(21)) is not None
    assert kept.store.usage().nbytes == kept.keeper.usage().nbytes


def test_a_page_that_was_written_anew_meanwhile_stays(kept: Kept) -> None:
    stored = kept.keeper.stored(kept.story.id(20))
    assert stored is not None
    _damage(kept.file(20))

    def rewritten() -> bool:
        kept.store.discard([kept.story.id(20)])
        kept.store.write(kept.story.page(20), 10**18, kept.story.document)
        return True

    assert not kept.keeper.drop_damaged(stored, rewritten)
    assert kept.file(20).exists()


def test_a_pass_goes_on_after_a_restart_and_the_next_begins_days_later(kept: Kept) -> None:
    kept.scrubber.has_rate(1e6)
    kept.scrubber.step(7)
    deadline = time.monotonic() + 20
    while not kept.count("scrubbed_pages") and time.monotonic() < deadline:
        os.sched_yield()
    kept.scrubber.stop(10)
    assert not kept.scrubber.is_running
    read = kept.count("scrubbed_pages")
    assert 1 <= read < PAGES
    kept.state.close()
    kept.begin()
    kept.scrubber.has_rate(1e9)
    kept.run()
    assert read + kept.count("scrubbed_pages") == PAGES
    kept.state.close()
    kept.begin()
    kept.scrubber.has_rate(1e9)
    wait = kept.scrubber.step(7)
    assert 7 * 86_400 - 60 < wait <= 7 * 86_400
    kept.state.note(finished=time.time() - 8 * 86_400)
    kept.run()
    assert kept.count("scrubbed_pages") == PAGES


def test_an_empty_directory_is_no_pass(kept: Kept) -> None:
    kept.store.discard([kept.story.id(number) for number in range(1, PAGES + 1)])
    kept.keeper.refresh()
    kept.scrubber.has_rate(1e9)
    kept.run()
    assert (kept.count("passes"), kept.state.kept.finished) == (0, 0.0)
    assert 0 < kept.scrubber.step(7) <= 3600


def test_a_torn_file_of_the_service_begins_anew(kept: Kept) -> None:
    kept.state.close()
    for raw in (b"", b"{", b"[1]", b'{"after": 3, "pages": "x", "finished": 5}', b"\xff" * 4096):
        (kept.directory / "keeper.json").write_bytes(raw)
        kept.begin()
        assert (kept.state.kept.after, kept.state.kept.pages) == ("", 0)
        kept.state.close()


def test_leftovers_go_and_what_is_being_written_stays(kept: Kept) -> None:
    shard = kept.file(1).parent
    empty = shard.parent / "zz"
    empty.mkdir(mode=0o700)
    left = [shard / ".tmp-999999999-ab-1", kept.directory / ".tmp-999999999-ab-2"]
    for path in left:
        path.write_bytes(b"x")
    fs = FileSystem()
    begun = shard / ".tmp-999999998-cd-1"
    fd = fs.reserve(begun, 10)
    found = list(leftovers(kept.directory, fs))
    assert sorted(map(Path, found)) == sorted([*left, begun])
    assert kept.keeper.sweep(found, list(empty_shards(kept.directory, fs))) == 2
    assert begun.exists()
    assert not empty.exists()
    os.close(fd)
    assert not any(path.exists() for path in left)
    assert len([name for name in files_in(kept.directory) if "safetensors" in str(name)]) == PAGES
