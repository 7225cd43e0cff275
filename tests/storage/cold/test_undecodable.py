"""Pages that this process cannot decode are kept, counted, and not read again and again."""

import os
import sys
from pathlib import Path

import pytest

from kit.storage import FaultyDisk, Story, files_in, open_cold, read_cold
from kit.storage.signed import signed_header, split_header
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.errors import UndecodablePage
from omlx_cache_storage.format import packing
from omlx_cache_storage.format.header import header_length
from omlx_cache_storage.format.packing import wrap

NUMBERS = range(1, 9)
needs_zstd = pytest.mark.skipif(not packing.available(), reason="no zstd is installed")


def _packed(directory: Path, story: Story) -> None:
    writer = open_cold(directory, encode=wrap)
    for number in NUMBERS:
        assert writer.write(story.floats(number), 10**18, story.document) == "written"


@pytest.fixture
def no_zstd(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("zstandard", "compression.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    assert not packing.available()


def _open(directory: Path, disk: FaultyDisk | None = None) -> ColdTier:
    return open_cold(directory, fs=disk or FaultyDisk())


def _as_format_2(path: Path) -> None:
    """Rewrite a file's header as a later version would that keeps the checksum's rule."""
    raw, used = path.read_bytes(), path.stat().st_mtime_ns
    fields, tensors = split_header(raw)
    header = signed_header({**fields, "format": "2", "invented": "later"}, tensors)
    path.write_bytes(header + raw[header_length(raw) :])
    os.utime(path, ns=(used, used))


@needs_zstd
def test_a_reader_without_zstd_keeps_every_packed_page(
    tmp_path: Path, story: Story, no_zstd: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as with_zstd:
        with_zstd.delitem(sys.modules, "zstandard")
        with_zstd.delitem(sys.modules, "compression.zstd")
        _packed(tmp_path, story)
    tier = _open(tmp_path)
    for number in NUMBERS:
        with pytest.raises(UndecodablePage, match="zstd"):
            read_cold(tier, story.id(number))
    assert len(files_in(tmp_path)) == len(NUMBERS)
    usage = tier.usage()
    assert (usage.undecodable_pages, usage.corrupt_pages, usage.state) == (8, 0, "ok")
    tier.check_integrity()


def _undecodable(tmp_path: Path, story: Story, disk: FaultyDisk | None = None) -> ColdTier:
    """Return a tier with page 1 sound and page 2 of a later format, found to be so."""
    tier = _open(tmp_path, disk)
    for number in (1, 2):
        assert tier.write(story.page(number), 10**18, story.document) == "written"
    (path,) = (entry.path for entry in tier.entries() if entry.page == story.id(2))
    _as_format_2(path)
    with pytest.raises(UndecodablePage, match="format '2' is not 1"):
        read_cold(tier, story.id(2))
    assert path.exists()
    return tier


def test_an_undecodable_page_is_hidden_and_not_opened_again(tmp_path: Path, story: Story) -> None:
    disk = FaultyDisk()
    tier = _undecodable(tmp_path, story, disk)
    opened = disk.calls["open"]
    assert tier.info(story.id(2)) is None
    assert story.id(2) not in tier
    with pytest.raises(UndecodablePage):
        read_cold(tier, story.id(2))
    assert disk.calls["open"] == opened


def test_an_undecodable_page_is_not_written_before_it_was_evicted(
    tmp_path: Path, story: Story
) -> None:
    tier = _undecodable(tmp_path, story)
    before = {path: path.read_bytes() for path in files_in(tmp_path)}
    assert tier.write(story.page(2), 10**18, story.document) == "undecodable"
    assert {path: path.read_bytes() for path in files_in(tmp_path)} == before
    limit, tier._index.limit_bytes = tier.limit_bytes, tier.usage().nbytes - 1
    tier.settle()
    tier._index.limit_bytes = limit
    assert tier.write(story.page(2), 10**18, story.document) == "written"
    assert read_cold(tier, story.id(2)) == story.page(2).payload
    assert tier.usage().undecodable_pages == 0
    tier.check_integrity()
