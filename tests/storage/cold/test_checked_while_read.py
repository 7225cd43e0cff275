"""A page is checked part by part while it is read, however its memory is divided."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from kit.storage import FaultyDisk, Story, bytes_of, files_in, flip, open_cold
from omlx_cache_storage.cold.page_reader import CHECKED_BYTES
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.errors import CorruptPage

NBYTES = 3 * CHECKED_BYTES + 4321


def _written(directory: Path, story: Story, disk: FaultyDisk | None = None) -> ColdTier:
    tier = open_cold(directory, fs=disk)
    assert tier.write(story.page(1), 10**18, story.document) == "written"
    return tier


def _divided(sizes: Sequence[int]) -> list[bytearray]:
    pieces = [bytearray(size) for size in sizes]
    return [*pieces, bytearray(NBYTES - sum(sizes))]


@pytest.mark.parametrize("sizes", [[], [CHECKED_BYTES], [CHECKED_BYTES + 1], [100] * 20])
def test_no_more_is_read_at_a_time_than_a_core_keeps(tmp_path: Path, sizes: list[int]) -> None:
    story, disk, asked = Story(nbytes=NBYTES), FaultyDisk(), list[int]()
    disk.each["read_into"] = lambda fd, at, buffers: asked.append(sum(map(len, buffers)))
    tier, pieces = _written(tmp_path, story, disk), _divided(sizes)
    with tier.reading(story.id(1)) as reader:
        reader.read_into(pieces)
    assert b"".join(pieces) == bytes_of(story.page(1))
    assert sum(asked) == NBYTES
    assert max(asked) <= CHECKED_BYTES
    assert len(asked) <= 5


@pytest.mark.parametrize("at", [0, CHECKED_BYTES - 1, CHECKED_BYTES, NBYTES - 1])
def test_a_flipped_bit_is_found_in_whichever_part_it_is(tmp_path: Path, at: int) -> None:
    story = Story(nbytes=NBYTES)
    tier = _written(tmp_path, story)
    (path,) = files_in(tmp_path)
    flip(path, at - NBYTES)
    with pytest.raises(CorruptPage), tier.reading(story.id(1)) as reader:
        reader.read_into(_divided([30_000] * 10))
