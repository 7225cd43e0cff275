"""The ledger by itself: what is appended is read in order, once, or is said to be lost."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.storage import FaultyDisk, open_cold
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.ledger import HEADER_BYTES, SMALLEST_BYTES, Ledger, LedgerBusy
from omlx_cache_storage.cold.ledger_records import (
    Cancelled,
    Change,
    Removed,
    Reserved,
    decode,
    encode,
)
from omlx_cache_storage.format.names import LEDGER_FILE, PageName, StoredPage
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId

Opened = Callable[..., Ledger]


def _open(directory: Path, fs: FileSystem | None = None) -> Ledger:
    ledger = Ledger(directory, fs or FileSystem())
    ledger.open(SMALLEST_BYTES)
    return ledger


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def ledger(directory: Path) -> Iterator[Opened]:
    """Opens the directory's ledger, as each of its processes does."""
    with ExitStack() as stack:
        yield lambda fs=None: stack.enter_context(closing(_open(directory, fs)))


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
    with closing(_open(directory)) as writer, closing(_open(directory)) as reader:
        for batch in batches:
            _append(writer, *batch)
            assert reader.news() == batch
        assert reader.news() == writer.news() == []


def test_a_reader_that_is_behind_by_more_than_half_the_ring_is_told_that_it_is(
    ledger: Opened,
) -> None:
    writer, reader = ledger(), ledger()
    for number in range(SMALLEST_BYTES // 2 // 128 + 1):
        _append(writer, _change(number, 120))
    assert reader.news() is None
    reader.skip()
    _append(writer, RECORD)
    assert reader.news() == [RECORD]


@pytest.mark.parametrize("size", [40, 56, 120])
def test_a_writer_that_dies_in_the_middle_of_a_record_changes_nothing_for_a_reader(
    ledger: Opened, size: int
) -> None:
    def dying(fd: int, data: bytes, offset: int) -> None:
        if offset == 0:
            raise KeyboardInterrupt

    fs = FaultyDisk()
    writer, reader = ledger(fs), ledger()
    records = [_change(number, size) for number in range(1000)]
    assert {len(encode(record)) for record in records} == {size}
    count = (SMALLEST_BYTES - HEADER_BYTES) // (size + 8)
    for record in records[:count]:
        _append(writer, record)
    fs.each["poke"] = dying
    with pytest.raises(KeyboardInterrupt):
        _append(writer, *records[count : count + 20])
    assert reader.news() in (None, records[:count])


@pytest.mark.parametrize("raw", [b"", b"x", bytes(4096), os.urandom(SMALLEST_BYTES)])
def test_garbage_is_replaced(directory: Path, ledger: Opened, raw: bytes) -> None:
    path = directory / LEDGER_FILE
    path.write_bytes(raw)
    path.chmod(0o600)
    writer, reader = ledger(), ledger()
    _append(writer, RECORD)
    assert reader.news() == [RECORD]
    assert path.stat().st_blocks * 512 >= path.stat().st_size == SMALLEST_BYTES


def test_who_has_the_directory_is_waited_for_so_long_and_no_longer(ledger: Opened) -> None:
    one, two = ledger(), ledger()
    began = time.monotonic()
    with one.held(), pytest.raises(LedgerBusy), two.held(0.05):
        pass
    assert time.monotonic() - began < 30
    with two.held(), two.held():
        pass
    with one.held(0.0):
        pass


def test_a_ledger_that_others_can_change_is_replaced_by_whoever_enters(directory: Path) -> None:
    path = directory / LEDGER_FILE
    path.write_bytes(b"somebody else's")
    path.chmod(0o666)
    tier = open_cold(directory, 2**20)
    assert tier.usage().state == "ok"
    assert path.stat().st_mode & 0o777 == 0o600


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
