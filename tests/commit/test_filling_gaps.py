"""A commit that finds pages gone between others stores just those, encoded as they were."""

from pathlib import Path

import numpy as np
import pytest

from omlx_cache.arrays.mlxio import host_views
from omlx_cache.session import Session
from omlx_cache.tools.bench.bed import Bed
from omlx_cache.tools.bench.figures import BLOCK_SIZE, Size

BLOCKS = 4
SIZE = Size("test", 2, 2, 64, BLOCKS * BLOCK_SIZE, 1, 0, 0, 0)


def kept(session: Session) -> list[bytes]:
    views = [host_views([a])[0] for c in session.prompt_cache for a in (c.keys, c.values)]
    return [np.ascontiguousarray(view[:, :, : SIZE.tokens]).tobytes() for view in views]


@pytest.mark.parametrize("gone", [(0, 3), (0, 2), (1, 3), (0, 1, 3)], ids=str)
@pytest.mark.parametrize("codec", ["dense", "affine8", "turbo4"])
def test_pages_that_left_between_others_come_back_with_their_bits(
    tmp_path: Path, codec: str, gone: tuple[int, ...]
) -> None:
    bed = Bed(SIZE, tmp_path, codec=codec, hot_cache_only=True)
    with bed.store:
        session = bed.filled(bed.live_arrays())
        session.checkpoint(SIZE.tokens)
        with bed.restore() as restored:
            right = kept(restored)
        pages = sorted(bed.store.hot.entries(), key=lambda entry: entry.meta.position)
        assert len(pages) == BLOCKS
        assert bed.store.hot.discard(pages[block].meta.id for block in gone) == len(gone)
        assert session.commit().pages == BLOCKS + len(gone)
        with bed.restore() as restored:
            assert kept(restored) == right
