"""Several tiers on one directory, and a disk, a process or a person that gets in their way."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kit.storage import FaultyDisk, Story, disk_usage, files_in, open_cold
from kit.units import DAY, KIB
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.ledger import SMALLEST_BYTES, Ledger

PAGE = 64 * KIB
LIMIT = 1200 * KIB


@pytest.fixture
def story() -> Story:
    return Story(nbytes=PAGE)


def test_an_earlier_version_that_a_killed_writer_had_no_time_to_delete_counts(
    tmp_path: Path, story: Story
) -> None:
    def killed(_: object) -> None:
        raise KeyboardInterrupt

    disk = FaultyDisk()
    disk.each["remove"] = killed
    one, two = open_cold(tmp_path, fs=disk), open_cold(tmp_path)
    one.write(story.page(1, held=8, nbytes=512 * KIB), DAY, story.document)
    with pytest.raises(KeyboardInterrupt):
        one.write(story.page(1), DAY, story.document)
    one.close()
    assert len(files_in(tmp_path)) == 2
    two.settle()
    assert two.usage().nbytes >= disk_usage(tmp_path)


def test_a_temporary_file_that_its_writer_cannot_delete_counts_for_the_others(
    tmp_path: Path, story: Story
) -> None:
    disk = FaultyDisk()
    one, two = open_cold(tmp_path, fs=disk), open_cold(tmp_path)
    one.write(story.page(20), DAY, story.document)
    disk.fail |= {"publish": errno.EIO, "remove": errno.EACCES}
    for number in range(1, 9):
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            one.write(story.page(number), DAY, story.document)
    two.refresh()
    two.settle()
    assert two.usage().nbytes >= disk_usage(tmp_path)


def test_a_write_that_could_not_be_noted_in_the_ledger_counts_no_more(
    tmp_path: Path, story: Story
) -> None:
    disk = FaultyDisk()
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


def test_a_page_is_not_refused_for_long_for_what_a_writer_reserved_who_gave_up(
    tmp_path: Path, story: Story
) -> None:
    older = Story("older", nbytes=PAGE)
    two = open_cold(tmp_path, LIMIT)
    results: list[str] = []

    def give_up(*_: object) -> None:
        results.append(two.write(older.page(1), DAY, older.document))
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk = FaultyDisk()
    disk.each["write"] = give_up
    one = open_cold(tmp_path, LIMIT, fs=disk)
    number = 0
    while LIMIT - two.usage().nbytes > 2 * PAGE + 96 * KIB:
        number += 1
        two.write(story.page(number), DAY + 5, story.document)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        one.write(story.page(40, nbytes=PAGE + 48 * KIB), DAY + 6, story.document)
    assert results == ["refused"], "the room was reserved"
    two.settle()
    assert two.write(older.page(2), DAY, older.document) == "written", "and it is worth less"


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
        assert int(holder.stdout.readline())
        ledger = Ledger(tmp_path, FileSystem())
        holder.send_signal(signal.SIGKILL)
        holder.wait(60)
        try:
            ledger.open(SMALLEST_BYTES)
        finally:
            ledger.close()
            holder.stdin.close()
