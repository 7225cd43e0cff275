"""Several tiers on one directory, and a disk, a process or a person that gets in their way."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kit.storage import FaultyDisk, Story, disk_usage, files_in, open_cold
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.ledger import HEADER_BYTES, SMALLEST_BYTES, Ledger
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.format.names import LEDGER_FILE, SUFFIX

KIB = 1024
PAGE = 64 * KIB
LIMIT = 1200 * KIB
DAY = 10**18


class Disk(FaultyDisk):
    def poke(self, fd: int, data: bytes, offset: int) -> None:
        self._enter("poke")
        super().poke(fd, data, offset)


@pytest.fixture
def story() -> Story:
    return Story(nbytes=PAGE)


def test_an_earlier_version_that_a_killed_writer_had_no_time_to_delete_counts(
    tmp_path: Path, story: Story
) -> None:
    class Killed(BaseException):
        pass

    class Kills(Disk):
        def remove(self, path: str) -> None:  # type: ignore[override]
            raise Killed

    one, two = open_cold(tmp_path, fs=Kills()), open_cold(tmp_path)
    one.write(story.page(1, held=8, nbytes=512 * KIB), DAY, story.document)
    with pytest.raises(Killed):
        one.write(story.page(1), DAY, story.document)
    one.close()
    assert len(files_in(tmp_path)) == 2
    two.settle()
    assert two.usage().nbytes >= disk_usage(tmp_path)


def test_a_temporary_file_that_its_writer_cannot_delete_counts_for_the_others(
    tmp_path: Path, story: Story
) -> None:
    disk = Disk()
    one, two = open_cold(tmp_path, fs=disk), open_cold(tmp_path)
    one.write(story.page(20), DAY, story.document)
    disk.fail |= {"publish": errno.EIO, "remove": errno.EACCES}
    for number in range(1, 9):
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            one.write(story.page(number), DAY, story.document)
    two.refresh()
    two.settle()
    assert two.usage().nbytes >= disk_usage(tmp_path)


def test_a_page_named_while_the_directory_was_made_anew_is_told_before_it_counts_as_written(
    tmp_path: Path, story: Story
) -> None:
    others: list[ColdTier] = []

    class MadeAnew(FileSystem):
        def publish(self, temporary: str, path: str) -> None:
            if path.endswith(SUFFIX) and not others:
                # `rm -rf` takes the ledger first, and somebody begins a new one before it ends.
                (tmp_path / LEDGER_FILE).unlink()
                others.append(open_cold(tmp_path))
            super().publish(temporary, path)

    one = open_cold(tmp_path, fs=MadeAnew())
    assert one.write(story.page(1), DAY, story.document) == "written"
    others[0].refresh()
    assert story.id(1) in others[0]


def test_a_write_that_could_not_be_noted_in_the_ledger_counts_no_more(
    tmp_path: Path, story: Story
) -> None:
    disk = Disk()
    one = open_cold(tmp_path, fs=disk)
    one.write(story.page(1), DAY, story.document)
    before = one.usage().nbytes
    disk.fail["poke"] = errno.EIO
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        one.write(story.page(2), DAY, story.document)
    disk.fail.clear()
    one.settle()
    assert one.usage().nbytes <= before + 16 * KIB, "but for a shard's directory"
    one.check_integrity()


def test_what_was_discarded_by_one_who_fell_behind_does_not_come_back(tmp_path: Path) -> None:
    small = Story(nbytes=KIB, blocks=400)
    one, two = open_cold(tmp_path, 4096 * KIB), open_cold(tmp_path, 4096 * KIB)
    one.write(small.page(1), DAY, small.document)
    two.refresh()
    for turn in range(3):
        for number in range(2, 60):
            one.write(small.page(number), DAY + turn, small.document)
        one.discard(small.ids(*range(2, 60)))
    assert not two.refresh(), "more was changed than the ledger holds"
    assert two.discard(small.ids(1)) == 1
    two.settle()
    assert two.info(small.id(1)) is None
    assert not files_in(tmp_path)


def test_a_page_is_not_refused_for_long_for_what_a_writer_reserved_who_gave_up(
    tmp_path: Path, story: Story
) -> None:
    older = Story("older", nbytes=PAGE)
    two = open_cold(tmp_path, LIMIT)
    results = []

    class GivesUp(Disk):
        def write(self, *_: object) -> int:
            results.append(two.write(older.page(1), DAY, older.document))
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    one = open_cold(tmp_path, LIMIT, fs=GivesUp())
    number = 0
    while LIMIT - two.usage().nbytes > 2 * PAGE + 96 * KIB:
        number += 1
        two.write(story.page(number), DAY + 5, story.document)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        one.write(story.page(40, nbytes=PAGE + 48 * KIB), DAY + 6, story.document)
    assert results == ["refused"], "the room was reserved"
    two.settle()
    assert two.write(older.page(2), DAY, older.document) == "written", "and it is worth less"


def test_a_ledger_that_was_cut_off_behind_its_header_is_no_ledger_without_news(
    tmp_path: Path, story: Story
) -> None:
    one, two = open_cold(tmp_path), open_cold(tmp_path)
    one.write(story.page(1), DAY, story.document)
    os.truncate(tmp_path / LEDGER_FILE, HEADER_BYTES)
    two.refresh()
    two.settle()
    assert two.info(story.id(1)) is not None


_HOLDER = """
import os, sys, time
from pathlib import Path
from omlx_cache_storage.cold import sharing
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.ledger import SMALLEST_BYTES, Ledger
ledger = Ledger(Path(sys.argv[1]), FileSystem())
ledger.open(SMALLEST_BYTES)
child = os.fork()
if not child:
    sys.stdin.read()
    os._exit(0)
with ledger.held():
    print(child, flush=True)
    time.sleep(600)
"""


def test_a_lock_ends_with_its_holder_though_a_child_that_it_forked_lives_on(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", _HOLDER, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert int(holder.stdout.readline())
        ledger = Ledger(tmp_path, FileSystem())
        holder.send_signal(signal.SIGKILL)
        holder.wait(60)
        try:
            ledger.open(SMALLEST_BYTES)
        finally:
            ledger.close()
            holder.stdin.close()
