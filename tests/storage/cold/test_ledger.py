"""The ledger by itself: what is appended is read in order, once, or is said to be lost."""

import errno
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.storage import open_cold
from omlx_cache_storage.cold.changes import Cancelled, Change, Removed, Reserved, decode, encode
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.ledger import HEADER_BYTES, SMALLEST_BYTES, Ledger, LedgerBusy
from omlx_cache_storage.format.names import LEDGER_FILE, PageName, StoredPage
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId


def _open(directory: Path, fs: FileSystem | None = None) -> Ledger:
    ledger = Ledger(directory, fs or FileSystem())
    ledger.open(SMALLEST_BYTES)
    return ledger


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def _append(ledger: Ledger, *changes: Change) -> None:
    with ledger.held():
        ledger.append(changes)


def _change(number: int, size: int) -> Change:
    """Return a change whose record has so many bytes."""
    return Cancelled(f"{number:0{size - 4}}")


RECORD = Cancelled(".tmp-1-a-1")


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.builds(Cancelled, st.text(max_size=900)), max_size=6), max_size=25))
def test_a_reader_that_keeps_up_gets_every_record_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[Change]]
) -> None:
    directory = tmp_path_factory.mktemp("ledger")
    writer, reader = _open(directory), _open(directory)
    for batch in batches:
        _append(writer, *batch)
        assert reader.news() == batch
    assert reader.news() == writer.news() == []
    writer.close()
    reader.close()


def test_a_reader_that_is_behind_by_more_than_half_the_ring_is_told_that_it_is(
    directory: Path,
) -> None:
    writer, reader = _open(directory), _open(directory)
    for number in range(SMALLEST_BYTES // 2 // 128 + 1):
        _append(writer, _change(number, 120))
    assert reader.news() is None
    reader.skip()
    _append(writer, RECORD)
    assert reader.news() == [RECORD]
    writer.close()
    reader.close()


@pytest.mark.parametrize("size", [40, 56, 120])
def test_a_writer_that_dies_in_the_middle_of_a_record_changes_nothing_for_a_reader(
    directory: Path, size: int
) -> None:
    class Dying(FileSystem):
        dying = False

        def poke(self, fd: int, data: bytes, offset: int) -> None:
            if self.dying and offset == 0:
                raise KeyboardInterrupt
            super().poke(fd, data, offset)

    fs = Dying()
    writer, reader = _open(directory, fs), _open(directory)
    records = [_change(number, size) for number in range(1000)]
    assert {len(encode(record)) for record in records} == {size}
    count = (SMALLEST_BYTES - HEADER_BYTES) // (size + 8)
    for record in records[:count]:
        _append(writer, record)
    fs.dying = True
    with pytest.raises(KeyboardInterrupt):
        _append(writer, *records[count : count + 20])
    assert reader.news() in (None, records[:count])
    writer.close()
    reader.close()


def test_more_than_half_a_ring_at_once_has_everybody_read_the_directory(directory: Path) -> None:
    writer, reader = _open(directory), _open(directory)
    _append(writer, Cancelled("x" * SMALLEST_BYTES))
    assert reader.news() is None
    assert writer.news() == []
    writer.close()
    reader.close()


@pytest.mark.parametrize("raw", [b"", b"x", bytes(4096), os.urandom(SMALLEST_BYTES)])
def test_garbage_is_replaced(directory: Path, raw: bytes) -> None:
    path = directory / LEDGER_FILE
    path.write_bytes(raw)
    path.chmod(0o600)
    writer, reader = _open(directory), _open(directory)
    _append(writer, RECORD)
    assert reader.news() == [RECORD]
    assert path.stat().st_blocks * 512 >= path.stat().st_size == SMALLEST_BYTES
    writer.close()
    reader.close()


def test_who_has_the_directory_is_waited_for_so_long_and_no_longer(directory: Path) -> None:
    one, two = _open(directory), _open(directory)
    began = time.monotonic()
    with one.held(), pytest.raises(LedgerBusy), two.held(0.05):
        pass
    assert time.monotonic() - began < 5
    with two.held(), two.held():
        pass
    with one.held(0.0):
        pass
    one.close()
    two.close()


def test_a_ledger_that_was_deleted_is_not_held(directory: Path) -> None:
    one = _open(directory)
    (directory / LEDGER_FILE).unlink()
    assert one.is_gone
    assert not one.is_current
    with pytest.raises(FileNotFoundError), one.held():
        pass
    one.close()


def test_a_link_is_no_ledger(directory: Path) -> None:
    (directory / "elsewhere").write_bytes(b"")
    (directory / LEDGER_FILE).symlink_to(directory / "elsewhere")
    with pytest.raises(FileNotFoundError):
        _open(directory)


def test_a_ledger_that_the_disk_has_no_room_for_keeps_its_size(directory: Path) -> None:
    class Full(FileSystem):
        full = False

        def poke(self, fd: int, data: bytes, offset: int) -> None:
            if self.full and offset:
                raise OSError(errno.ENOSPC, "full")
            super().poke(fd, data, offset)

    fs = Full()
    one, two = _open(directory, fs), _open(directory)
    fs.full = True
    with one.held():
        one.resize(8 * SMALLEST_BYTES)
    assert one.nbytes == os.stat(directory / LEDGER_FILE).st_size == SMALLEST_BYTES
    _append(two, RECORD)
    assert one.news() == [RECORD]
    one.close()
    two.close()


def test_a_process_that_was_forked_keeps_its_parent_out(directory: Path) -> None:
    one = _open(directory)
    ready, held = os.pipe()
    end, ended = os.pipe()
    child = os.fork()
    if not child:
        os.close(ended)
        with one.held():
            os.write(held, b"h")
            os.read(end, 1)
        os._exit(0)
    assert os.read(ready, 1) == b"h"
    with pytest.raises(LedgerBusy), one.held(0.05):
        pass
    os.write(ended, b"e")
    assert os.waitpid(child, 0)[1] == 0
    with one.held():
        pass
    for fd in (ready, held, end, ended):
        os.close(fd)
    one.close()


def test_a_ledger_that_others_can_change_is_replaced_by_whoever_enters(directory: Path) -> None:
    path = directory / LEDGER_FILE
    path.write_bytes(b"somebody else's")
    path.chmod(0o666)
    tier = open_cold(directory, 2**20)
    assert tier.usage().state == "ok"
    assert path.stat().st_mode & 0o777 == 0o600
    tier.close()


def test_records_of_other_versions_are_passed_over_and_longer_ones_understood() -> None:
    import msgpack

    name = PageName(PageId(BlockKey(bytes(32)), "paged"), bytes(8), 16, 16, False)
    page = StoredPage(BlockKey(bytes(32)), name, 4096)
    reserved, removed = Reserved(".tmp-1-a-1", page, 0), Removed(page, "disk")
    longer = msgpack.packb([*msgpack.unpackb(encode(reserved)), "later"])
    assert decode(longer) == reserved
    assert decode(encode(removed)) == removed
    for other in (msgpack.packb([99, "what"]), encode(removed)[:-3], b"\xc1", b"", b"\x90"):
        assert decode(other) is None
