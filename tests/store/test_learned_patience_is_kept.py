"""What the eviction policy has learned outlives the process; a file that makes no sense does no
harm."""

import json
from pathlib import Path
from typing import Any

import pytest

from kit.storage import HandClock, Story, commit, disk_usage, open_store
from omlx_cache.store import BlockStore
from omlx_cache_storage.cold.small_files import Reuse, read_reuse, write_reuse
from omlx_cache_storage.eviction.ages import BUCKETS, Learned

PAGE = 4 * 1024
MOST_PATIENT = Learned((1.0,) * BUCKETS, 5000, 30.0)


def use(store: BlockStore, clock: HandClock, story: Story, times: int, gap: float = 20.0) -> None:
    """Have a chain of forty pages used again and again."""
    commit(store, story, *range(1, 41))
    assert store.flush(60)
    for _ in range(times):
        clock.pass_by(gap)
        store.touch(story.ids(*range(1, 41)))


@pytest.fixture(autouse=True)
def _used_before(tmp_path: Path) -> None:
    """A directory without a ledger may be one where a disk is mounted at other times."""
    (tmp_path / "ledger").touch(mode=0o600)


def patience(store: BlockStore) -> tuple[int, int]:
    assert store.cold is not None
    return store.hot.patience_ns, store.cold.patience_ns


def test_a_store_that_opens_again_is_as_patient_as_the_one_before(tmp_path: Path) -> None:
    clock = HandClock()
    with open_store(tmp_path, clock=clock) as store:
        use(store, clock, Story(nbytes=PAGE), 96)
        learned = patience(store)
        assert min(learned) > 10e9
    with open_store(tmp_path, clock=clock) as store:
        assert patience(store) == learned
    assert read_reuse(tmp_path).memory is not None


def test_each_tier_has_its_own_part_and_one_that_learns_nothing_leaves_it(tmp_path: Path) -> None:
    disk = MOST_PATIENT._replace(patience_seconds=90.0)
    write_reuse(tmp_path, Reuse(MOST_PATIENT, disk))
    with open_store(tmp_path) as store:
        assert patience(store) == (30 * 10**9, 90 * 10**9)
    clock = HandClock()
    with open_store(tmp_path, clock=clock, hot_bytes=0) as store:
        use(store, clock, Story(nbytes=PAGE), 3)
        assert store.hot.patience_ns == 0
    kept = read_reuse(tmp_path)
    assert kept.memory == MOST_PATIENT
    assert kept.disk is not None
    assert kept.disk.seen == MOST_PATIENT.seen + 120


def part(**fields: Any) -> dict[str, Any]:
    return {**MOST_PATIENT.document(), **fields}


def of_parts(**fields: Any) -> bytes:
    return json.dumps({"version": 1, "memory": part(**fields), "disk": part(**fields)}).encode()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00\xff" * 300,
        b"[]",
        b"[" * 200_000,
        of_parts()[:200],
        of_parts() + b" " * (2 << 20),
        json.dumps({"version": 2, "memory": part(), "disk": part()}).encode(),
        json.dumps({"version": 1, "memory": [1], "disk": None}).encode(),
        json.dumps({"memory": part(), "disk": part()}).encode(),
        of_parts(version=0),
        of_parts(uses=[1.0]),
        of_parts(uses=["1"] * BUCKETS),
        of_parts(uses=[-1.0] * BUCKETS),
        of_parts(uses=[float("nan")] * BUCKETS),
        of_parts(uses=[10**400] * BUCKETS),
        of_parts(seen=-1),
        of_parts(seen=True),
        of_parts(seen=2.5),
        of_parts(seen=10**400),
        of_parts(patience_seconds=float("inf")),
        of_parts(patience_seconds=1e300),
        of_parts(patience_seconds=10**400),
        of_parts(patience_seconds="30"),
        of_parts(seen=1),
    ],
)
def test_a_file_that_makes_no_sense_teaches_nothing_and_is_replaced(
    tmp_path: Path, raw: bytes
) -> None:
    (tmp_path / "reuse.json").write_bytes(raw)
    (tmp_path / "reuse.json").chmod(0o600)
    clock = HandClock()
    with open_store(tmp_path, clock=clock) as store:
        assert patience(store) == (0, 0)
        use(store, clock, Story(nbytes=PAGE), 3)
    kept = read_reuse(tmp_path)
    assert kept.memory is not None
    assert kept.memory.seen in (120, 121)


def test_a_file_is_within_the_budget_is_no_foreign_one_and_stays(tmp_path: Path) -> None:
    write_reuse(tmp_path, Reuse(MOST_PATIENT, MOST_PATIENT))
    assert (tmp_path / "reuse.json").stat().st_mode & 0o777 == 0o600
    clock = HandClock()
    with open_store(tmp_path, clock=clock, cold_bytes=512 * 1024) as store:
        usage = store.stats().cold
        assert usage is not None
        assert usage.ignored_files == 0
        assert usage.nbytes >= disk_usage(tmp_path)
        use(store, clock, Story(nbytes=64 * 1024), 3)
    assert disk_usage(tmp_path) <= 512 * 1024
    assert read_reuse(tmp_path) != Reuse(MOST_PATIENT, MOST_PATIENT)
