"""A request that comes while the next turn is prepared waits for one chunk at most."""

from pathlib import Path

import pytest

from qa.arrivals import campaign


@pytest.mark.usefixtures("forks")
def test_no_arrival_waits_for_more_than_one_chunk(tmp_path: Path) -> None:
    waits = campaign(25, 1, tmp_path)
    assert waits[True].total() >= 25
    assert waits[True][1] > 0
    assert max(waits[True]) <= 1
