"""What `flush` calls durable outlives the process and the power, in every mixture of settings."""

from collections import Counter
from pathlib import Path

import pytest

from kit.forks import CAN_FORK
from omlx_cache import BlockStore
from qa.flushes import campaign, cut_round

pytestmark = [
    pytest.mark.skipif(not CAN_FORK, reason="kills processes that are forked"),
    pytest.mark.usefixtures("forks"),
]


def test_no_flush_is_untrue(tmp_path: Path) -> None:
    tally, faults = campaign(60, 1, tmp_path)
    assert faults == []
    assert tally["checked"] > 0
    assert tally["kills"] > 0
    assert tally["cuts"] > 0


def test_a_flush_that_lies_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flush, live = BlockStore.flush, tmp_path / "live"

    def lie(store: BlockStore, timeout: float | None = None) -> bool:
        # Only the store that works: the one that looks waits for the directory by a flush.
        return store.settings.cold_dir == live or flush(store, timeout)

    monkeypatch.setattr(BlockStore, "flush", lie)
    assert cut_round(1, tmp_path, Counter())


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_none_of_5000_flushes_is_untrue(tmp_path: Path) -> None:
    tally, faults = campaign(5000, 2, tmp_path)
    assert faults == []
    assert tally["flushed"] >= 5000
