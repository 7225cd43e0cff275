"""Where the default policy wants snapshots of recurrent state."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx_cache.commit.committer import StridePolicy


@pytest.mark.parametrize(
    ("start", "stop", "branch", "expected"),
    [
        (0, 300, None, [256, 299]),
        (0, 257, None, [256]),
        (0, 256, None, [255]),
        (0, 3000, None, [2048, 2816, 2999]),
        (0, 8192, None, [2048, 4096, 6144, 7936, 8191]),
        (2048, 3000, None, [2816, 2999]),
        (299, 300, None, []),
        (0, 3000, 512, [512, 2048, 2816, 2999]),
        (512, 3000, 512, [2048, 2816, 2999]),
        (0, 1, None, []),
    ],
)
def test_the_positions_of_the_default_policy(
    start: int, stop: int, branch: int | None, expected: list[int]
) -> None:
    policy = StridePolicy(2048)
    found = policy.positions(start=start, stop=stop, block_size=256, branch=branch)
    assert found == expected


def test_the_spacing_does_not_follow_the_block_size() -> None:
    counts = [
        len(StridePolicy(2048).positions(start=0, stop=32_768, block_size=size, branch=None))
        for size in (16, 64, 256, 2048)
    ]
    assert max(counts) - min(counts) <= 1


@given(
    stride=st.integers(1, 5000),
    start=st.integers(0, 5000),
    length=st.integers(0, 5000),
    block=st.integers(16, 512),
    branch=st.one_of(st.none(), st.integers(0, 10_000)),
)
def test_positions_ascend_and_leave_at_least_one_token(
    stride: int, start: int, length: int, block: int, branch: int | None
) -> None:
    stop = start + length
    found = StridePolicy(stride).positions(start=start, stop=stop, block_size=block, branch=branch)
    assert found == sorted(set(found))
    assert all(start < position < stop for position in found)
    if length > 1:
        assert found[-1] == stop - 1
