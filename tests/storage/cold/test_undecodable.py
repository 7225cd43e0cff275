"""Pages that this process cannot decode are kept, counted, and not read again and again."""

import os
from pathlib import Path

import pytest

from kit.storage import FaultyDisk, Story, files_in, open_cold, read_cold
from kit.storage.signed import signed_header, split_header
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.errors import UndecodablePage
from omlx_cache_storage.format.header import header_length


def _as_format_2(path: Path) -> None:
    """Rewrite a file's header as a later version would that keeps the checksum's rule."""
    raw, used = path.read_bytes(), path.stat().st_mtime_ns
    fields, tensors = split_header(raw)
    header = signed_header({**fields, "format": "2", "invented": "later"}, tensors)
    path.write_bytes(header + raw[header_length(raw) :])
    os.utime(path, ns=(used, used))


def _undecodable(tmp_path: Path, story: Story, disk: FaultyDisk | None = None) -> ColdTier:
    """Return a tier with page 1 sound and page 2 of a later format, found to be so."""
    tier = open_cold(tmp_path, fs=disk or FaultyDisk())
    for number in (1, 2):
        assert tier.write(story.page(number), 10**18, story.document) == "written"
    (path,) = (entry.path for entry in tier.listing() if entry.page == story.id(2))
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
