"""The benchmarks of one directory for several processes measure what they say."""

from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.shared_processes import Crowd
from benchmarks.shared_writes import Untold
from omlx_cache.tools.bench.shared_pages import chain_of, pages_of, store_all
from omlx_cache_storage.cold.tier import ColdTier

pytestmark = pytest.mark.nightly

BIG = 1 << 30


def test_chains_have_no_block_in_common_and_a_longer_one_goes_on_like_a_shorter_one() -> None:
    one, longer, other = (pages_of(*which, 16) for which in ((1, 2), (1, 3), (2, 3)))
    assert one == longer[:2]
    assert not {page.meta.key for page in longer} & {page.meta.key for page in other}
    assert [page.meta.key for page in one] == chain_of(1, 2).boundaries(1, 2)


def test_a_tier_that_tells_nobody_is_not_followed(tmp_path: Path) -> None:
    with closing(ColdTier(tmp_path, BIG)) as other, closing(Untold(tmp_path, BIG)) as silent:
        other.open()
        silent.open()
        assert store_all(silent, pages_of(1, 2, 16)) == 2
        assert not other.refresh()


def test_processes_write_what_they_are_told_and_the_same_pages_once(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path, BIG, 2)
    try:
        assert crowd.write([[(1, 2)], [(2, 3)]]) == 5
        assert crowd.write([[(3, 4)], [(3, 4)]]) == 4
        assert crowd.write([[(3, 4)], [(1, 2)]]) == 0
    finally:
        crowd.close()


def test_a_page_that_is_not_stored_is_an_error_of_the_benchmark(tmp_path: Path) -> None:
    with closing(ColdTier(tmp_path, 1)) as tier:
        tier.open()
        with pytest.raises(RuntimeError, match="was not stored: \\['full'\\]"):
            store_all(tier, pages_of(1, 1, 16))
