"""Pages that the writer packs for the disk come back as they were, or not at all."""

from pathlib import Path

import pytest

from kit.storage import Story, files_in, flip, open_cold, read_cold
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.errors import CorruptPage
from omlx_cache_storage.format import packing
from omlx_cache_storage.format.packing import wrap

pytestmark = pytest.mark.skipif(not packing.available(), reason="no zstd is installed")


def _open(directory: Path) -> ColdTier:
    return open_cold(directory, encode=wrap)


def test_a_packed_page_is_smaller_and_read_back_bit_for_bit(tmp_path: Path) -> None:
    story, tier = Story(), _open(tmp_path)
    page = story.floats(1)
    assert tier.write(page, 10**18, story.document) == "written"
    (path,) = files_in(tmp_path)
    assert path.stat().st_size < 16 * 1024 + len(page.payload) * 0.95
    for reader_tier in (tier, _open(tmp_path)):
        with reader_tier.reading(page.meta.id) as reader:
            assert reader.meta == page.meta
            pieces = [bytearray(10), bytearray(0), bytearray(len(page.payload) - 10)]
            reader.read_into(pieces)
        assert b"".join(pieces) == page.payload


def test_a_damaged_packed_page_is_corrupt_and_deleted(tmp_path: Path) -> None:
    story, tier = Story(), _open(tmp_path)
    assert tier.write(story.floats(1), 10**18, story.document) == "written"
    (path,) = files_in(tmp_path)
    flip(path)
    with pytest.raises(CorruptPage):
        read_cold(tier, story.id(1))
    assert files_in(tmp_path) == []
